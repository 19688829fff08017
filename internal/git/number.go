package git

import (
	"math"
	"strconv"
	"strings"
)

// ParseInt parses a number like C, after any space: decimal, octal after a 0, hexadecimal after 0x.
func ParseInt(s string, bits int) (int64, bool) {
	s = strings.TrimLeft(s, cSpace)
	n, err := strconv.ParseInt(s, 0, bits)
	return n, err == nil && isCNumber(s)
}

// ParseSize parses a number like C that is not negative, with an optional k, m or g, as in git's configuration.
func ParseSize(s string) (uint64, bool) {
	s, unit := CutUnit(s)
	s = strings.TrimPrefix(strings.TrimLeft(s, cSpace), "+")
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil || !isCNumber(s) || n > math.MaxUint64/uint64(unit) {
		return 0, false
	}
	return n * uint64(unit), true
}

// CutUnit removes the unit of a number, which is 1 if there is none.
func CutUnit(s string) (digits string, unit int64) {
	if n := len(s) - 1; n >= 0 {
		if at := strings.IndexByte("kmg", s[n]|0x20); at >= 0 {
			return s[:n], 1 << (10 * (at + 1))
		}
	}
	return s, 1
}

const cSpace = " \t\n\v\f\r"

// isCNumber reports whether a number that is valid for strconv with base 0 is also valid in C.
func isCNumber(s string) bool {
	digits := strings.ToLower(strings.TrimLeft(s, "+-"))
	return !strings.Contains(s, "_") && !strings.HasPrefix(digits, "0b") && !strings.HasPrefix(digits, "0o")
}
