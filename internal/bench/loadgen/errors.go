package loadgen

import (
	"fmt"
	"io"
	"strings"
)

// Clean returns text from a server as one line that is safe for a terminal.
func Clean(b []byte) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
	return strings.TrimSpace(s)
}

// HTTPError is a complete response with a status other than 200. The connection can be used again.
type HTTPError struct {
	Status int
	Text   string
}

func (e *HTTPError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("HTTP status %d", e.Status)
	}
	return fmt.Sprintf("HTTP status %d: %s", e.Status, e.Text)
}

// Drain drops the rest of the body.
func (b *Body) Drain() error {
	for {
		if _, err := b.Skip(discardStep); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
