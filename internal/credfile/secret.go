package credfile

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// Bounds of a secret, in bytes.
const (
	minSecret = 16
	maxSecret = 4096
)

// Secret is a secret that two processes share. It follows its file. Safe for concurrent use.
type Secret struct{ followed[string] }

// LoadSecret reads a secret: one line of at least 16 bytes; space around it does not count. A file that everybody can read
// is refused.
func LoadSecret(file string, log *slog.Logger) (*Secret, error) {
	s := &Secret{followed[string]{
		what: "shared secret", files: []string{file}, log: log,
		load:  func() (string, error) { return readSecret(file) },
		about: func(string) []any { return []any{"file", file} },
	}}
	return s, s.first()
}

// Get is the secret of now.
func (s *Secret) Get() string { return s.get() }

func readSecret(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("read the shared secret: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read the shared secret: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return "", fmt.Errorf("read the shared secret: everybody on this machine may use %s (mode %04o); run chmod 600 on it, and change the secret", file, mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("read the shared secret: %w", err)
	}
	secret := bytes.TrimSpace(text)
	for _, c := range secret {
		if c <= ' ' || c > '~' {
			return "", fmt.Errorf("read the shared secret: %s has more than one word, or other than printable ASCII", file)
		}
	}
	if len(secret) < minSecret || len(text) > maxSecret {
		return "", fmt.Errorf("read the shared secret: %s holds %d bytes; it has to be %d to %d, as from \"openssl rand -hex 32\"", file, len(secret), minSecret, maxSecret)
	}
	return string(secret), nil
}
