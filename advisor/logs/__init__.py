"""Responses that other tools wrote: their logs become the answers of models, without running a model.

To add a format, add one file to this folder, named like the tool. It needs a docstring with the form of the files, and
the members of :class:`advisor.logs.sources.LogFormat`: ``SUMMARY``, ``recognise`` and ``read``. List its name in
``FORMATS`` of :mod:`advisor.logs.sources`. :mod:`advisor.logs.join` joins the records of all logs. Other packages add
formats by entry points, with the names that this package exports; see :mod:`ensemble.plugins`.
"""

from __future__ import annotations

from advisor.logs.sources import LogFile, LogFormat, LogOptions, LogRecord, LogSource

__all__ = ["LogFile", "LogFormat", "LogOptions", "LogRecord", "LogSource"]
