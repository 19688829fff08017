package credfile

import (
	"fmt"
	"io"
	"log/slog"
	"os"
)

// maxPrivate is the maximum length of a private file in bytes.
const maxPrivate = 64 << 10

// Private is a value from a file that other users cannot read, such as a private key. It is reloaded when its file
// changes. Safe for concurrent use.
type Private[T any] struct{ followed[T] }

// LoadPrivate reads a value. It refuses a file with permissions for other users. what names the value in errors and in
// the log. Errors of parse must not contain the text.
func LoadPrivate[T any](what, file string, parse func(text []byte) (T, error), log *slog.Logger) (*Private[T], error) {
	p := &Private[T]{followed[T]{
		what: what, files: []string{file}, log: log,
		load: func() (value T, err error) {
			text, err := readPrivate(what, file)
			if err != nil {
				return value, err
			}
			if value, err = parse(text); err != nil {
				return value, fmt.Errorf("read the %s: %s: %w", what, file, err)
			}
			return value, nil
		},
		about: func(T) []any { return []any{"file", file} },
	}}
	return p, p.first()
}

// Get returns the current value.
func (p *Private[T]) Get() T { return p.get() }

// readPrivate reads a file without permissions for other users.
func readPrivate(what, file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("read the %s: %s has permissions for other users (mode %04o): run chmod 600 on it, and "+
			"change the secret", what, file, mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxPrivate+1))
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	if len(text) > maxPrivate {
		return nil, fmt.Errorf("read the %s: %s has more than %d bytes", what, file, maxPrivate)
	}
	return text, nil
}
