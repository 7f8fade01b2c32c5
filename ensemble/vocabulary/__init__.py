"""Vocabularies: tokens as bytes, the joint vocabulary of several tokenizers, and text in each member's ids."""
