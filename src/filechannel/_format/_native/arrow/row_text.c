/* Values that are numbers in a column and strings in a message: the inverse of column_text.c. */
#include "arrow/row.h"

#include <string.h>

#define DAY 86400000000
#define FIRST_DAY (-719162) /* 0001-01-01 */
#define LAST_DAY 2932896    /* 9999-12-31 */

static uint8_t *put_digits(uint8_t *at, unsigned int value, int count) {
    for (int digit = count; digit--; value /= 10) at[digit] = (uint8_t)('0' + value % 10);
    return at + count;
}

/* Years are counted from March of the year 0, so that a leap day is the last day of its year. */
size_t date_text(uint8_t *at, int64_t days) {
    if (days < FIRST_DAY || days > LAST_DAY) return 0;
    unsigned int count = (unsigned int)(days + 719468), era = count / 146097, in_era = count % 146097;
    unsigned int year_in_era = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    unsigned int in_year = in_era - (365 * year_in_era + year_in_era / 4 - year_in_era / 100);
    unsigned int shifted = (5 * in_year + 2) / 153, month = shifted < 10 ? shifted + 3 : shifted - 9;
    at = put_digits(at, year_in_era + 400 * era + (month <= 2), 4);
    *at++ = '-';
    at = put_digits(at, month, 2);
    *at++ = '-';
    put_digits(at, in_year - (153 * shifted + 2) / 5 + 1, 2);
    return 10;
}

int has_moment(int64_t microseconds) { return microseconds >= FIRST_DAY * DAY && microseconds < (LAST_DAY + 1) * DAY; }

size_t moment_text(uint8_t *at, int64_t microseconds) {
    if (!has_moment(microseconds)) return 0;
    int64_t days = microseconds / DAY - (microseconds % DAY < 0);
    uint64_t rest = (uint64_t)(microseconds - days * DAY);
    unsigned int seconds = (unsigned int)(rest / 1000000), fraction = (unsigned int)(rest % 1000000);
    uint8_t *from = at;
    at += date_text(at, days);
    *at++ = 'T';
    at = put_digits(at, seconds / 3600, 2);
    *at++ = ':';
    at = put_digits(at, seconds / 60 % 60, 2);
    *at++ = ':';
    at = put_digits(at, seconds % 60, 2);
    if (fraction) {
        *at++ = '.';
        at = put_digits(at, fraction, 6);
    }
    return (size_t)(at - from);
}

/* As Python writes a Decimal: in full, unless more than five zeros would stand between the point and the first
 * digit. */
size_t decimal_text(uint8_t *at, const uint8_t *value, unsigned int scale) {
    __int128 number;
    memcpy(&number, value, 16);
    unsigned __int128 rest = number < 0 ? -(unsigned __int128)number : (unsigned __int128)number;
    uint8_t reversed[40], *from = at;
    int count = 0, exponent;
    do reversed[count++] = (uint8_t)('0' + (unsigned int)(rest % 10));
    while (rest /= 10);
    if (number < 0) *at++ = '-';
    int before = count - (int)scale; /* digits before the decimal point */
    int point = before > -6 ? before : 1;
    if (point <= 0) {
        *at++ = '0';
        *at++ = '.';
        for (int zeros = point; zeros < 0; zeros++) *at++ = '0';
    }
    for (int digit = 0; digit < count; digit++) {
        if (digit == point && point > 0) *at++ = '.';
        *at++ = reversed[count - 1 - digit];
    }
    if ((exponent = before - point)) { /* always negative, with at most two digits */
        *at++ = 'E';
        *at++ = '-';
        at = put_digits(at, (unsigned int)-exponent, exponent <= -10 ? 2 : 1);
    }
    return (size_t)(at - from);
}

/* Only the canonical form; its letters become lower case. */
size_t uuid_text(uint8_t *at, const uint8_t *given, size_t size) {
    if (size != 36) return 0;
    for (size_t index = 0; index < 36; index++) {
        uint8_t each = given[index];
        int is_hyphen = index == 8 || index == 13 || index == 18 || index == 23;
        if (each >= 'A' && each <= 'F') each |= 0x20;
        if (is_hyphen ? each != '-' : !((each >= '0' && each <= '9') || (each >= 'a' && each <= 'f'))) return 0;
        at[index] = each;
    }
    return 36;
}
