/* Values that are strings in a message and numbers in a column: dates, timestamps, decimals. */
#include "arrow/column.h"

int is_utf8(const uint8_t *at, size_t size) {
    const uint8_t *end = at + size;
    while (at < end) {
        uint64_t eight;
        if (end - at >= 8 && (memcpy(&eight, at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        uint8_t first = *at++;
        if (first < 0x80) continue;
        unsigned int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
        if (first < 0xc2 || first > 0xf4 || (size_t)(end - at) < more) return 0;
        /* The second byte shows whether it is the shortest encoding, not a surrogate, and not beyond the last code
         * point. */
        if (first == 0xe0 && at[0] < 0xa0) return 0;
        if (first == 0xed && at[0] > 0x9f) return 0;
        if (first == 0xf0 && at[0] < 0x90) return 0;
        if (first == 0xf4 && at[0] > 0x8f) return 0;
        while (more--)
            if ((*at++ & 0xc0) != 0x80) return 0;
    }
    return 1;
}

/* `count` digits as a number; -1 if they are not digits. */
static int digits(const uint8_t **at, const uint8_t *end, int count) {
    int value = 0;
    if (end - *at < count) return -1;
    for (; count; count--, (*at)++) {
        if (**at < '0' || **at > '9') return -1;
        value = 10 * value + (**at - '0');
    }
    return value;
}

static int skip_char(const uint8_t **at, const uint8_t *end, uint8_t wanted) {
    if (*at >= end || **at != wanted) return 0;
    (*at)++;
    return 1;
}

static int last_day(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int leaps = month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return days[month - 1] + leaps;
}

/* Days since 1970-01-01. Years are counted from March, so that a leap day is the last day of its year. */
static int32_t days_since_epoch(int year, int month, int day) {
    int shifted = month <= 2 ? year - 1 : year;
    int era_day = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return 365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + era_day - 719468;
}

static int take_date(const uint8_t **at, const uint8_t *end, int32_t *days) {
    int year = digits(at, end, 4);
    if (year < 1 || !skip_char(at, end, '-')) return 0;
    int month = digits(at, end, 2);
    if (month < 1 || month > 12 || !skip_char(at, end, '-')) return 0;
    int day = digits(at, end, 2);
    if (day < 1 || day > last_day(year, month)) return 0;
    *days = days_since_epoch(year, month, day);
    return 1;
}

int parse_date(const uint8_t *at, size_t size, int32_t *days) {
    const uint8_t *end = at + size;
    return take_date(&at, end, days) && at == end;
}

static int take_fraction(const uint8_t **at, const uint8_t *end, int64_t *microseconds) {
    int64_t unit = 100000;
    if (!skip_char(at, end, '.')) return 1;
    if (*at >= end || **at < '0' || **at > '9') return 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++, unit /= 10) *microseconds += unit * (**at - '0');
    return 1;
}

/* "Z", "+01:00", or nothing: then the value is not converted. */
static int take_zone(const uint8_t **at, const uint8_t *end, int64_t *minutes) {
    *minutes = 0;
    if (*at == end || ((**at == 'Z' || **at == 'z') && (*at)++)) return 1;
    int sign = **at == '+' ? 1 : **at == '-' ? -1 : 0;
    (*at)++;
    int hour = sign ? digits(at, end, 2) : -1;
    if (hour < 0 || hour > 23) return 0;
    (void)skip_char(at, end, ':');
    int minute = digits(at, end, 2);
    if (minute < 0 || minute > 59) return 0;
    *minutes = sign * (60 * hour + minute);
    return 1;
}

int parse_moment(const uint8_t *at, size_t size, int64_t *microseconds) {
    const uint8_t *end = at + size;
    int32_t days;
    if (!take_date(&at, end, &days) || at >= end || (*at != 'T' && *at != 't' && *at != ' ')) return 0;
    at++;
    int hour = digits(&at, end, 2);
    if (hour < 0 || hour > 23 || !skip_char(&at, end, ':')) return 0;
    int minute = digits(&at, end, 2);
    if (minute < 0 || minute > 59 || !skip_char(&at, end, ':')) return 0;
    int second = digits(&at, end, 2);
    int64_t fraction = 0, zone;
    if (second < 0 || second > 59 || !take_fraction(&at, end, &fraction) || !take_zone(&at, end, &zone) || at != end) return 0;
    *microseconds = (((int64_t)days * 24 + hour) * 60 + minute - zone) * 60000000 + (int64_t)second * 1000000 + fraction;
    return 1;
}

/* Arrow's decimal128, and Spark's, have at most 38 digits. */
#define MOST_DIGITS 38

static int take_exponent(const uint8_t **at, const uint8_t *end, int *exponent) {
    *exponent = 0;
    if (*at == end) return 1;
    if (**at != 'e' && **at != 'E') return 0;
    (*at)++;
    int sign = 1;
    if (*at < end && (**at == '+' || **at == '-')) sign = *(*at)++ == '-' ? -1 : 1;
    int count = (int)(end - *at > 5 ? 5 : end - *at);
    if (count < 1 || count > 4 || (*exponent = digits(at, end, count)) < 0) return 0;
    *exponent *= sign;
    return 1;
}

/* Convert exactly or not at all: a number with too many digits is rejected rather than rounded. */
int parse_decimal(const uint8_t *at, size_t size, __int128 *scaled) {
    const uint8_t *end = at + size;
    int negative = size && *at == '-', any = 0, point = 0, behind = 0, count = 0, zeros = 0, exponent;
    __int128 value = 0;
    if (size && (*at == '-' || *at == '+')) at++;
    for (; at < end && ((*at >= '0' && *at <= '9') || (*at == '.' && !point)); at++) {
        if (*at == '.') {
            point = 1;
            continue;
        }
        any = 1;
        behind += point;
        if (*at == '0') { /* trailing zeros may not matter */
            zeros += value != 0;
            continue;
        }
        for (; zeros; zeros--, count++) {
            if (count >= MOST_DIGITS) return 0;
            value *= 10;
        }
        if (count++ >= MOST_DIGITS) return 0;
        value = 10 * value + (*at - '0');
    }
    if (!any || !take_exponent(&at, end, &exponent)) return 0;
    int shift = DECIMAL_SCALE + exponent - behind + zeros;
    if (value == 0) shift = 0;
    if (shift < 0 || count + shift > MOST_DIGITS) return 0;
    for (; shift; shift--) value *= 10;
    *scaled = negative ? -value : value;
    return 1;
}
