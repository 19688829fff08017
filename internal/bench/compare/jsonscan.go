package compare

import (
	"bytes"
	"encoding/json"
	"errors"
	"unicode/utf8"
)

var errJSON = errors.New("no JSON object")

// fieldKind is the kind of a JSON value.
type fieldKind uint8

const (
	kindString fieldKind = iota // the text without quotes and escapes
	kindNumber                  // as in the line
	kindOther                   // null, an object, an array
	kindBool                    // true, false
)

// scanObject calls field for each member of a JSON object, which is the whole line, in order. Simple flat lines, as
// logs have them, are read in one pass without allocation. Other lines are read with encoding/json. If the line is not
// JSON, it returns an error, possibly after some calls.
func scanObject(line []byte, field func(key, value []byte, kind fieldKind)) error {
	if scanPlain(line, field) {
		return nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(line, &all); err != nil || all == nil {
		return errJSON
	}
	for key, raw := range all {
		switch raw[0] {
		case '"':
			var text string
			if err := json.Unmarshal(raw, &text); err != nil {
				return errJSON
			}
			field([]byte(key), []byte(text), kindString)
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			field([]byte(key), raw, kindNumber)
		case 't', 'f':
			field([]byte(key), raw, kindBool)
		default:
			field([]byte(key), raw, kindOther)
		}
	}
	return nil
}

// scanPlain scans an object whose strings are UTF-8 without escapes, and whose values are not objects or arrays. If it
// returns false, the line may still be JSON.
func scanPlain(line []byte, field func(key, value []byte, kind fieldKind)) bool {
	i := space(line, 0)
	if i >= len(line) || line[i] != '{' {
		return false
	}
	if i = space(line, i+1); i < len(line) && line[i] == '}' {
		return space(line, i+1) == len(line)
	}
	for {
		key, next := plainString(line, i)
		if next < 0 {
			return false
		}
		if i = space(line, next); i >= len(line) || line[i] != ':' {
			return false
		}
		if i = space(line, i+1); i >= len(line) {
			return false
		}
		var value []byte
		kind := kindOther
		switch c := line[i]; {
		case c == '"':
			value, next = plainString(line, i)
			kind = kindString
		case c == '-' || c >= '0' && c <= '9':
			next = numberEnd(line, i)
			kind = kindNumber
		default:
			if next = literalEnd(line, i); c != 'n' {
				kind = kindBool
			}
		}
		if next < 0 {
			return false
		}
		if kind != kindString {
			value = line[i:next]
		}
		field(key, value, kind)
		if i = space(line, next); i >= len(line) {
			return false
		}
		switch line[i] {
		case ',':
			i = space(line, i+1)
		case '}':
			return space(line, i+1) == len(line)
		default:
			return false
		}
	}
}

func space(line []byte, i int) int {
	for i < len(line) && (line[i] == ' ' || line[i] == '\t' || line[i] == '\r' || line[i] == '\n') {
		i++
	}
	return i
}

// plainString scans a string without escapes that begins at i. It returns the index after its end, or -1.
func plainString(line []byte, i int) (text []byte, next int) {
	if i >= len(line) || line[i] != '"' {
		return nil, -1
	}
	n := bytes.IndexByte(line[i+1:], '"')
	if n < 0 {
		return nil, -1
	}
	text = line[i+1 : i+1+n]
	ascii := true
	for _, c := range text {
		if c == '\\' || c < ' ' {
			return nil, -1
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	if !ascii && !utf8.Valid(text) {
		return nil, -1
	}
	return text, i + n + 2
}

// numberEnd returns the index after a JSON number that begins at i, or -1.
func numberEnd(line []byte, i int) int {
	digits := func() bool {
		from := i
		for i < len(line) && line[i] >= '0' && line[i] <= '9' {
			i++
		}
		return i > from
	}
	if line[i] == '-' {
		i++
	}
	zero := i < len(line) && line[i] == '0'
	if from := i; !digits() || zero && i > from+1 {
		return -1
	}
	if i < len(line) && line[i] == '.' {
		i++
		if !digits() {
			return -1
		}
	}
	if i < len(line) && (line[i] == 'e' || line[i] == 'E') {
		i++
		if i < len(line) && (line[i] == '+' || line[i] == '-') {
			i++
		}
		if !digits() {
			return -1
		}
	}
	return i
}

func literalEnd(line []byte, i int) int {
	for _, word := range []string{"true", "false", "null"} {
		if len(line)-i >= len(word) && string(line[i:i+len(word)]) == word {
			return i + len(word)
		}
	}
	return -1
}
