/* A step of UNITE on a processor: the union of the members' top k and its probabilities, and the greedy choice.
 *
 * ensemble/step/compiled.py calls these functions, and says what the arrays are. They do what `union` of
 * ensemble/methods/unite.py and `greedy` of ensemble/step/distribution.py do with tensors, row by row. A row does not
 * depend on the others, so a text is the same alone and in a batch. Sums are in double precision.
 */
#include <math.h>
#include <stdint.h>

#define NONE (-1)
#define MOST_CANDIDATES 64
#define MOST_ENTRIES 1024
#define BLOCK 64

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

#ifdef _WIN32
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED
#endif

/* A logit in float32, or in bfloat16, which is the upper half of it. */
static inline float value_at(const void *row, int is_half, int64_t place)
{
    union { uint32_t bits; float value; } number;
    if (!is_half)
        return ((const float *)row)[place];
    number.bits = (uint32_t)((const uint16_t *)row)[place] << 16;
    return number.value;
}

/* The k largest values of a row and their ids, in descending order, lower ids first among equals. Places without a
 * value above minus infinity keep it. Returns whether the row has a NaN. */
static inline int search(const void *row, int is_half, int64_t width, int k, float *values, int64_t *ids)
{
    int has_nan = 0;
    for (int n = 0; n < k; n++) {
        values[n] = -INFINITY;
        ids[n] = 0;
    }
    for (int64_t start = 0; start < width; start += BLOCK) {
        int64_t end = start + BLOCK;
        float smallest = values[k - 1];
        if (end <= width) {
            /* Most blocks have nothing for the top k, which one comparison of all their values tells. */
            int is_above = 0;
            for (int n = 0; n < BLOCK; n++)
                is_above |= !(value_at(row, is_half, start + n) <= smallest);
            if (!is_above)
                continue;
        } else {
            end = width;
        }
        for (int64_t id = start; id < end; id++) {
            float value = value_at(row, is_half, id);
            if (value > values[k - 1]) {
                int n = k - 1;
                for (; n > 0 && values[n - 1] < value; n--) {
                    values[n] = values[n - 1];
                    ids[n] = ids[n - 1];
                }
                values[n] = value;
                ids[n] = id;
            } else if (isnan(value)) {
                has_nan = 1;
            }
        }
    }
    return has_nan;
}

FOR_EACH_PROCESSOR
static int search_single(const void *row, int64_t width, int k, float *values, int64_t *ids)
{
    return search(row, 0, width, k, values, ids);
}

FOR_EACH_PROCESSOR
static int search_half(const void *row, int64_t width, int k, float *values, int64_t *ids)
{
    return search(row, 1, width, k, values, ids);
}

/* Insertion sort: the entries are few, and each member's are new to the ones before. */
static void sort(int64_t *entries, int count)
{
    for (int n = 1; n < count; n++) {
        int64_t entry = entries[n];
        int place = n;
        for (; place > 0 && entries[place - 1] > entry; place--)
            entries[place] = entries[place - 1];
        entries[place] = entry;
    }
}

/* A member's logits [rows, width], a row every `stride` values, and its side of the joint vocabulary. */
struct member {
    const void *logits;
    int64_t is_half, width, stride, candidates;
    const int64_t *entry_of;
};

static const void *row_of(const struct member *member, int64_t row)
{
    return (const char *)member->logits + row * member->stride * (member->is_half ? 2 : 4);
}

/* See `union` in compiled.py. */
EXPORTED void unite_union(
    int64_t count, const struct member *members, int64_t rows, int64_t columns, const int64_t *places,
    const float *penalties, const double *weights, int64_t *wanted, int64_t *entries, int64_t *ids, uint8_t *present,
    float *probabilities)
{
    float values[MOST_CANDIDATES];
    int64_t best[MOST_CANDIDATES];
    double own[MOST_ENTRIES], mean[MOST_ENTRIES];
    int size = 0;
    for (int64_t m = 0; m < count; m++)
        size += (int)members[m].candidates;
    for (int64_t row = 0; row < rows; row++, wanted += size, entries += size, ids += size, present += size) {
        int found = 0, has_nan = 0;
        for (const struct member *member = members; member < members + count; member++) {
            int k = (int)member->candidates;
            has_nan |= (member->is_half ? search_half : search_single)(row_of(member, row), member->width, k, values, best);
            for (int n = 0; n < k; n++)
                wanted[found++] = values[n] == -INFINITY ? NONE : member->entry_of[best[n]];
        }
        for (int n = 0; n < size; n++)
            entries[n] = wanted[n];
        sort(entries, size);
        /* Equal entries are side by side: all but the first are absent, and so is NONE. */
        int64_t before = NONE;
        for (int n = 0; n < size; n++) {
            int64_t entry = entries[n];
            present[n] = entry != before;
            before = entry;
            entries[n] = present[n] ? entry : columns - 1;
            ids[n] = places[count * columns + entries[n]];
            mean[n] = has_nan ? NAN : 0;
        }
        for (int64_t m = 0; m < count; m++) {
            float *shares = probabilities + (m * rows + row) * size;
            double largest = -INFINITY, total = 0;
            for (int n = 0; n < size; n++) {
                int64_t cell = m * columns + entries[n];
                own[n] = (double)value_at(row_of(&members[m], row), (int)members[m].is_half, places[cell]) + penalties[cell];
                if (own[n] > largest)
                    largest = own[n];
            }
            for (int n = 0; n < size; n++) {
                own[n] = exp(own[n] - largest);
                total += own[n];
            }
            for (int n = 0; n < size; n++) {
                own[n] /= total;
                mean[n] += weights[m] * own[n];
                shares[n] = (float)own[n];
            }
        }
        for (int n = 0; n < size; n++)
            probabilities[(count * rows + row) * size + n] = (float)mean[n];
    }
}

/* See `choice` in compiled.py. */
EXPORTED void unite_choice(
    int64_t rows, int64_t size, const float *mean, const float *first, const int64_t *ids, const uint8_t *present,
    double *numbers)
{
    for (int64_t row = 0; row < rows; row++, mean += size, first += size, ids += size, present += size, numbers += 3) {
        int64_t winner = -1, handled = 0;
        double total = 0;
        for (int64_t n = 0; n < size; n++) {
            total += mean[n];
            handled += present[n];
            if (ids[n] == NONE)
                continue;
            if (winner < 0 || mean[n] > mean[winner]
                || (mean[n] == mean[winner]
                    && (first[n] > first[winner] || (first[n] == first[winner] && ids[n] < ids[winner]))))
                winner = n;
        }
        numbers[0] = total;
        numbers[1] = winner < 0 ? NONE : (double)ids[winner];
        numbers[2] = (double)handled;
    }
}
