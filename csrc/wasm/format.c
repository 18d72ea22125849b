/* snprintf and vsnprintf for the core's messages: %d, %lld, %zu, %s and %.Ns, and nothing else. The C library's takes 30 kB of a
 * module, because it also writes floating-point numbers. Every format in csrc is tried by tests/web/test_wasm.py.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "../strict_math.h"

typedef struct {
    char *text;
    size_t n_bytes, length; /* of the buffer; of what would be written, its closing zero not counted */
} writer;

static void put(writer *w, char c)
{
    if (w->length + 1 < w->n_bytes)
        w->text[w->length] = c;
    w->length++;
}

static void put_number(writer *w, int is_negative, uint64_t size)
{
    char digits[20];
    int n = 0;
    do
        digits[n++] = (char)('0' + size % 10);
    while (size /= 10);
    if (is_negative)
        put(w, '-');
    while (n)
        put(w, digits[--n]);
}

static void put_integer(writer *w, int64_t value)
{
    put_number(w, value < 0, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

int vsnprintf(char *restrict text, size_t n_bytes, const char *restrict format, va_list args)
{
    writer w = {text, n_bytes, 0};
    for (; *format; format++) {
        if (*format != '%') {
            put(&w, *format);
            continue;
        }
        size_t most = SIZE_MAX;
        if (*++format == '.')
            for (most = 0; *++format >= '0' && *format <= '9';)
                most = 10 * most + (size_t)(*format - '0');
        if (*format == 'd') {
            put_integer(&w, va_arg(args, int));
        } else if (*format == 'l') { /* ld: %lld */
            format += 2;
            put_integer(&w, va_arg(args, long long));
        } else if (*format == 'z') { /* u: %zu */
            format++;
            put_number(&w, 0, va_arg(args, size_t));
        } else if (*format == 's') {
            for (const char *s = va_arg(args, const char *); *s && most; s++, most--)
                put(&w, *s);
        } else {
            put(&w, *format);
        }
    }
    if (n_bytes)
        text[w.length < n_bytes ? w.length : n_bytes - 1] = '\0';
    return (int)w.length;
}

int snprintf(char *restrict text, size_t n_bytes, const char *restrict format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(text, n_bytes, format, args);
    va_end(args);
    return length;
}
