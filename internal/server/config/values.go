package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. In the configuration it is a number, or a string with a unit: "64KiB", "10GiB", "2GB".
type Size int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{ // a name that ends in another comes first
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1},
}

// UnmarshalText reads a whole number and a unit; no unit means bytes.
func (s *Size) UnmarshalText(text []byte) error {
	number, factor := strings.TrimSpace(string(text)), int64(1)
	for _, unit := range sizeUnits {
		if rest, ok := strings.CutSuffix(number, unit.name); ok {
			number, factor = strings.TrimSpace(rest), unit.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return fmt.Errorf("%q is not a size: write a whole number and a unit (KiB, MiB, GiB or TiB), as in \"10GiB\"", text)
	}
	*s = Size(n * factor)
	return nil
}

// MarshalText writes the size in the shortest exact way.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Size) String() string {
	shortest := strconv.FormatInt(int64(s), 10)
	for _, unit := range sizeUnits {
		if unit.bytes == 1 || s == 0 || int64(s)%unit.bytes != 0 {
			continue
		}
		if text := strconv.FormatInt(int64(s)/unit.bytes, 10) + unit.name; len(text) <= len(shortest) {
			shortest = text
		}
	}
	return shortest
}

// Duration is a span of time, written as a string: "500ms", "30s", "5m", "2h". It is a struct so that a number
// without a unit is refused.
type Duration struct{ time.Duration }

// UnmarshalText reads a duration as time.ParseDuration does; negative ones are refused.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = errors.New("negative")
	}
	if err != nil {
		return fmt.Errorf("%q is not a duration: write a number and a unit, as in \"30s\" or \"5m\"", text)
	}
	d.Duration = v
	return nil
}

// MarshalText writes the duration without zero parts: "5m", not "5m0s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string {
	s := d.Duration.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// FileMode is the mode of a file, written as a string in octal: "0600".
type FileMode uint32

// UnmarshalText reads three or four octal digits.
func (m *FileMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil || n > 0o777 {
		return fmt.Errorf("%q is not a file mode: write it in octal, as in \"0600\"", text)
	}
	*m = FileMode(n)
	return nil
}

// MarshalText writes four octal digits.
func (m FileMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// bareKey is a key of TOML that needs no quotation marks.
var bareKey = regexp.MustCompile(`^[\w-]+$`)

// stringTable is a table of strings with arbitrary keys.
type stringTable map[string]string

// TOML returns the table in one line.
func (t stringTable) TOML() string {
	if len(t) == 0 {
		return "{}"
	}
	pairs := make([]string, 0, len(t))
	for _, key := range slices.Sorted(maps.Keys(t)) {
		text := key
		if !bareKey.MatchString(key) {
			text = strconv.Quote(key)
		}
		pairs = append(pairs, text+" = "+strconv.Quote(t[key]))
	}
	return "{ " + strings.Join(pairs, ", ") + " }"
}
