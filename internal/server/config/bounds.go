package config

import (
	"math"
	"reflect"
	"slices"
	"strings"
)

// maxNumber is the maximum of whole numbers whose range has no other.
const maxNumber = "16777216"

// check reports a value outside of the values or the range in the tags of its field. The default is always allowed.
func (s Setting) check(f *Findings) {
	bad, text := f.at(s.Key), s.Value.String()
	if values := strings.Fields(s.tag.Get("values")); len(values) > 0 && text != s.tag.Get("default") &&
		!slices.Contains(values, text) {
		bad("%s is %q; it has to be one of %q", s.subject, text, values)
	}
	low, high, ok := s.bounds()
	if !ok {
		return
	}
	low, exclusive := strings.CutPrefix(low, ">")
	n := numberOf(s.Value)
	aboveLow := low == "" || n > s.parse(low) || n == s.parse(low) && !exclusive
	if aboveLow && (high == "" || n <= s.parse(high)) {
		return
	}
	switch {
	case high == "" && exclusive:
		bad("%s is %s; it has to be more than %s", s.subject, s, low)
	case high == "":
		bad("%s is %s; it has to be at least %s", s.subject, s, low)
	case low == "":
		bad("%s is %s; it has to be at most %s", s.subject, s, high)
	case exclusive:
		bad("%s is %s; it has to be more than %s and at most %s", s.subject, s, low, high)
	default:
		bad("%s is %s; it has to be from %s to %s", s.subject, s, low, high)
	}
}

// bounds returns the bounds in the range tag as texts. An exclusive lower bound begins with ">".
func (s Setting) bounds() (low, high string, ok bool) {
	text, ok := s.tag.Lookup("range")
	low, high, _ = strings.Cut(text, "..")
	if _, isInt := s.Value.Interface().(int); ok && isInt && high == "" {
		high = maxNumber
	}
	return low, high, ok
}

// parse returns a bound of s as a number.
func (s Setting) parse(bound string) float64 {
	v := Setting{Value: reflect.New(s.Value.Type()).Elem()}
	if v.Set(bound) != nil {
		return math.NaN() // no value is in such a range: a test finds the tag
	}
	return numberOf(v.Value)
}

// numberOf returns a number, a size in bytes, or a duration in nanoseconds.
func numberOf(v reflect.Value) float64 {
	switch d := v.Interface().(type) {
	case Duration:
		return float64(d.Duration)
	case float64:
		return d
	}
	return float64(v.Int())
}
