package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Mistake is a mistake in a configuration, or, as a warning, a value that is probably not intended.
type Mistake struct {
	Warning bool   `json:"warning"`
	File    string `json:"file,omitempty"` // "" if the mistake is not in a file
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"` // 0 means the whole line
	Key     string `json:"key,omitempty"`
	Text    string `json:"message"`

	fatal bool // the rest of the file could not be read
}

func (m *Mistake) Error() string {
	text := m.Text
	if m.Warning {
		text = "warning: " + text
	}
	switch {
	case m.File == "":
		return text
	case m.Line == 0:
		return m.File + ": " + text
	case m.Column == 0:
		return fmt.Sprintf("%s:%d: %s", m.File, m.Line, text)
	}
	return fmt.Sprintf("%s:%d:%d: %s", m.File, m.Line, m.Column, text)
}

// IsOfCertificate reports whether the mistake is about the period of a certificate.
func (m *Mistake) IsOfCertificate() bool { return m.Warning && strings.HasSuffix(m.Key, "tls_cert") }

// Findings collects the mistakes in a configuration.
type Findings struct {
	from Origins // lines of the keys; nil if there is no file
	All  []*Mistake
}

// bad adds a mistake. The message begins with its key.
func (f *Findings) bad(format string, args ...any) {
	text := fmt.Errorf(format, args...).Error()
	f.place(&Mistake{Key: leadingKey.FindString(text), Text: text})
}

// leadingKey is a dotted key at the beginning of a message.
var leadingKey = regexp.MustCompile(`^[a-z_]+(\.[a-z_]+)*`)

// at adds a mistake of a key or a table whose message begins with other words.
func (f *Findings) at(key, format string, args ...any) {
	f.place(&Mistake{Key: key, Text: fmt.Errorf(format, args...).Error()})
}

// add adds an error about a key unless it is nil, and each of joined errors.
func (f *Findings) add(key string, err error) { f.addAbout(key, PlainKey(key), err) }

// addAbout is add with other words for the key in messages.
func (f *Findings) addAbout(key, about string, err error) {
	switch e := err.(type) {
	case nil:
	case interface{ Unwrap() []error }:
		for _, each := range e.Unwrap() {
			f.addAbout(key, about, each)
		}
	default:
		f.at(key, "%s: %w", about, err)
	}
}

// warn adds a warning about a key.
func (f *Findings) warn(key, format string, args ...any) {
	f.place(&Mistake{Warning: true, Key: key, Text: fmt.Sprintf(format, args...)})
}

// take adds an error, and each of joined errors.
func (f *Findings) take(err error) {
	var one *Mistake
	switch e := err.(type) {
	case nil:
		return
	case *Mistake:
		one = e
	case interface{ Unwrap() []error }:
		for _, each := range e.Unwrap() {
			f.take(each)
		}
		return
	default:
		one = &Mistake{Text: err.Error()}
	}
	f.All = append(f.All, one)
}

// place adds a mistake with the line of its key, or of the table if the key is missing.
func (f *Findings) place(m *Mistake) {
	for key := m.Key; key != ""; key = above(key) {
		colon := strings.LastIndexByte(f.from[key], ':')
		if n, err := strconv.Atoi(f.from[key][colon+1:]); colon >= 0 && err == nil {
			m.File, m.Line = f.from[key][:colon], n
			break
		}
		if strings.HasPrefix(f.from[key], "--") {
			break
		}
	}
	f.All = append(f.All, m)
}

// above returns the table of a key, or the array of a table, or "" at the top level.
func above(key string) string {
	if strings.HasSuffix(key, "]") {
		return key[:strings.LastIndexByte(key, '[')]
	}
	return key[:max(strings.LastIndexByte(key, '.'), 0)]
}

// Err returns all mistakes without the warnings, one on each line, or nil if there are none.
func (f *Findings) Err() error {
	f.Sort()
	var all []error
	for _, m := range f.All {
		if !m.Warning {
			all = append(all, m)
		}
	}
	return errors.Join(all...)
}

// Sort sorts the findings by their lines. Those without a line are last.
func (f *Findings) Sort() {
	slices.SortStableFunc(f.All, func(a, b *Mistake) int {
		return cmp.Or(cmp.Compare(uint(a.Line-1), uint(b.Line-1)), cmp.Compare(a.Column, b.Column))
	})
}

// Fatal reports whether a part of the configuration could not be read.
func (f *Findings) Fatal() bool {
	for _, m := range f.All {
		if m.fatal {
			return true
		}
	}
	return false
}
