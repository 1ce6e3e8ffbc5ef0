/* SPDX-License-Identifier: Apache-2.0 */
/* core/units.c: sizes, times and counts for people, and "did you mean". Writes only into the
 * caller's buffer; any thread. */
#include "core/units.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *zt_format_bytes(double bytes, char *buf, size_t n) {
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    /* A value that would print as 1024.00 of one unit belongs to the next one. */
    if (!(fabs(bytes) >= 1023.5)) {
        snprintf(buf, n, "%.0f B", bytes);
        return buf;
    }
    size_t u = 0;
    double v = bytes / 1024.0;
    while (fabs(v) >= 1023.995 && u + 1 < sizeof unit / sizeof unit[0]) {
        v /= 1024.0;
        u++;
    }
    snprintf(buf, n, "%.2f %s", v, unit[u]);
    return buf;
}

/* s >= 59.995, finite. */
static void format_long(double s, char *buf, size_t n, const char *sign) {
    if (s > 9e15) {
        snprintf(buf, n, "%s%.3g s", sign, s);
        return;
    }
    int64_t t = (int64_t)(s + 0.5);
    if (t < 3600) {
        snprintf(buf, n, "%s%dm%02ds", sign, (int)(t / 60), (int)(t % 60));
        return;
    }
    int64_t m = (t + 30) / 60;
    if (m < 24 * 60)
        snprintf(buf, n, "%s%dh%02dm", sign, (int)(m / 60), (int)(m % 60));
    else {
        int64_t h = (m + 30) / 60;
        snprintf(buf, n, "%s%lldd%02dh", sign, (long long)(h / 24), (int)(h % 24));
    }
}

const char *zt_format_seconds(double s, char *buf, size_t n) {
    if (!isfinite(s)) {
        snprintf(buf, n, "%s", isnan(s) ? "nan" : s > 0 ? "inf" : "-inf");
        return buf;
    }
    double a = fabs(s);
    if (a == 0)
        snprintf(buf, n, "0 s");
    else if (a < 999.5e-9)
        snprintf(buf, n, "%.0f ns", s * 1e9);
    else if (a < 999.995e-6)
        snprintf(buf, n, "%.2f us", s * 1e6);
    else if (a < 999.995e-3)
        snprintf(buf, n, "%.2f ms", s * 1e3);
    else if (a < 59.995)
        snprintf(buf, n, "%.2f s", s);
    else
        format_long(a, buf, n, s < 0 ? "-" : "");
    return buf;
}

const char *zt_format_count(int64_t v, char *buf, size_t n) {
    char digits[24], out[32];
    uint64_t a = v < 0 ? (uint64_t)0 - (uint64_t)v : (uint64_t)v;
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)a);
    size_t o = 0;
    if (v < 0) out[o++] = '-';
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) out[o++] = ',';
        out[o++] = digits[i];
    }
    out[o] = '\0';
    snprintf(buf, n, "%s", out);
    return buf;
}

#define WORD_MAX_BYTES 96

/* Edit distance (insert, delete, replace, swap of neighbours as one edit), case ignored. Words are
 * short: three rows on the stack. Returns a large number for words that do not fit. */
static int edit_distance(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b);
    if (na > WORD_MAX_BYTES || nb > WORD_MAX_BYTES) return 1 << 20;
    int rows[3][WORD_MAX_BYTES + 1];
    int *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= nb; j++) last[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[j - 1]);
            int best = last[j - 1] + (ca != cb);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
                tolower((unsigned char)a[i - 2]) == cb && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        int *t = before;
        before = last;
        last = now;
        now = t;
    }
    return last[nb];
}

const char *zt_nearest(const char *word, const char *const *names, int n) {
    const char *best = NULL;
    int best_distance = 0;
    size_t nw = strlen(word);
    for (int i = 0; i < n; i++) {
        if (!names[i]) continue;
        int d = edit_distance(word, names[i]);
        if (!best || d < best_distance) {
            best = names[i];
            best_distance = d;
        }
    }
    /* One edit per three letters, at least one, is a typing slip; more is another word. */
    int allowed = (int)(nw / 3) > 1 ? (int)(nw / 3) : 1;
    return best && best_distance <= allowed && (size_t)best_distance < nw ? best : NULL;
}

const char *zt_divisors(int64_t n, char *buf, size_t size) {
    size_t used = 0;
    buf[0] = '\0';
    for (int64_t d = 1; d <= n && d <= 65536 && used + 32 < size; d++)
        if (n % d == 0)
            used += (size_t)snprintf(buf + used, size - used, "%s%lld", used ? " " : "", (long long)d);
    return buf;
}
