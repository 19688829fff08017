package git

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Text is a string of any bytes, as a JSON string: see Quote. Keys of JSON objects are strings that are quoted by hand,
// because encoding/json does not call methods of keys.
type Text string

// MarshalText implements encoding.TextMarshaler.
func (t Text) MarshalText() ([]byte, error) { return []byte(Quote(string(t))), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Text) UnmarshalText(b []byte) error {
	s, err := Unquote(string(b))
	*t = Text(s)
	return err
}

// Quote encodes a string of any bytes as Unicode, injectively. A string that is not UTF-8 or begins with a quotation
// mark is quoted as in Go, in ASCII. Others are unchanged.
func Quote(s string) string {
	if !utf8.ValidString(s) || s != "" && s[0] == '"' {
		return strconv.QuoteToASCII(s)
	}
	return s
}

// Unquote is the inverse of Quote. It refuses what Quote does not return.
func Unquote(quoted string) (string, error) {
	s := quoted
	if s != "" && s[0] == '"' {
		var err error
		if s, err = strconv.Unquote(s); err != nil {
			return "", fmt.Errorf("invalid quoted text %.80q: %w", quoted, err)
		}
	}
	if Quote(s) != quoted {
		return "", fmt.Errorf("text %.80q is not quoted as %.80q", s, Quote(s))
	}
	return s, nil
}
