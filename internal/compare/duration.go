package compare

import (
	"errors"
	"math"
	"strconv"
)

// Unit is that of a log's durations, in nanoseconds.
type Unit int64

// The units.
const (
	Auto         Unit = 0
	Nanoseconds  Unit = 1
	Microseconds Unit = 1e3
	Milliseconds Unit = 1e6
	Seconds      Unit = 1e9
)

// ParseUnit reads "auto", "s", "ms", "us" or "ns".
func ParseUnit(text string) (Unit, error) {
	switch text {
	case "auto":
		return Auto, nil
	case "s":
		return Seconds, nil
	case "ms":
		return Milliseconds, nil
	case "us", "µs":
		return Microseconds, nil
	case "ns":
		return Nanoseconds, nil
	}
	return Auto, errors.New("a unit is s, ms, us, ns, or auto")
}

var (
	errNoDuration = errors.New("no duration")
	errDuration   = errors.New("a duration that is no number")
	errNegative   = errors.New("a negative duration")
	errTooLong    = errors.New("a duration of more than 30 days")
)

// parseDuration reads a decimal number of a unit as nanoseconds. step is the worth of its last digit, in nanoseconds: of a log with milliseconds 1e6.
func parseDuration(text []byte, unit Unit) (ns, step int64, err error) {
	if len(text) == 0 || len(text) == 1 && text[0] == '-' {
		return 0, 0, errNoDuration
	}
	var whole int64
	i := 0
	for i < len(text) && i < 15 && text[i] >= '0' && text[i] <= '9' {
		whole = whole*10 + int64(text[i]-'0')
		i++
	}
	step = int64(unit)
	fraction := int64(0)
	if i > 0 && i < len(text) && text[i] == '.' {
		from := i + 1
		for i++; i < len(text) && text[i] >= '0' && text[i] <= '9'; i++ {
			if step >= 10 {
				step /= 10
				fraction += int64(text[i]-'0') * step
			}
		}
		if i == from {
			return 0, 0, errDuration
		}
	}
	if i < len(text) || i == 0 {
		return parseRareDuration(text, unit)
	}
	if whole > maxNanos/int64(unit) || whole*int64(unit)+fraction > maxNanos {
		return 0, 0, errTooLong
	}
	return whole*int64(unit) + fraction, step, nil
}

// parseRareDuration reads what has a sign, an exponent or very many digits.
func parseRareDuration(text []byte, unit Unit) (ns, step int64, err error) {
	x, err := strconv.ParseFloat(string(text), 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange), math.IsNaN(x):
		return 0, 0, errDuration
	case x < 0:
		return 0, 0, errNegative
	case x > float64(maxNanos)/float64(unit):
		return 0, 0, errTooLong
	}
	return int64(x * float64(unit)), 1, nil
}
