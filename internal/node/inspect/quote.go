package inspect

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// quote quotes a path as Git does in patches (git-config(1), core.quotePath).
func quote(prefix string, path []byte) []byte {
	b := append([]byte{'"'}, prefix...)
	quoted := false
	for _, c := range path {
		at := strings.IndexByte("\a\b\t\n\v\f\r\"\\", c)
		switch {
		case at >= 0:
			b = append(b, '\\', `abtnvfr"\`[at])
		case c < ' ' || c >= 0x7f:
			b = fmt.Appendf(b, "\\%03o", c)
		default:
			b = append(b, c)
			continue
		}
		quoted = true
	}
	if !quoted {
		return b[1:]
	}
	return append(b, '"')
}

// unquote is the inverse of quote without a prefix. A path without quotes is itself.
func unquote(text []byte) ([]byte, error) {
	if !bytes.HasPrefix(text, []byte{'"'}) {
		return bytes.Clone(text), nil
	}
	// the escapes of Git are some of those of Go
	path, err := strconv.Unquote(string(text))
	return []byte(path), err
}
