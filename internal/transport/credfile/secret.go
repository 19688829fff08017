package credfile

import (
	"bytes"
	"fmt"
	"log/slog"
)

// Limits of the length of a secret in bytes.
const (
	minSecret = 16
	maxSecret = 4096
)

// Secret is a secret that two processes share, reloaded when its file changes. Safe for concurrent use.
type Secret struct{ followed[string] }

// LoadSecret reads a secret: one line of at least 16 bytes, without surrounding space. It refuses a file with
// permissions for other users.
func LoadSecret(file string, log *slog.Logger) (*Secret, error) {
	s := &Secret{followed[string]{
		what: "shared secret", files: []string{file}, log: log,
		load:  func() (string, error) { return readSecret(file) },
		about: func(string) []any { return []any{"file", file} },
	}}
	return s, s.first()
}

// Get returns the current secret.
func (s *Secret) Get() string { return s.get() }

func readSecret(file string) (string, error) {
	text, err := readPrivate("shared secret", file)
	if err != nil {
		return "", err
	}
	secret := bytes.TrimSpace(text)
	for _, c := range secret {
		if c <= ' ' || c > '~' {
			return "", fmt.Errorf("read the shared secret: %s: use one word of printable ASCII", file)
		}
	}
	if len(secret) < minSecret || len(text) > maxSecret {
		return "", fmt.Errorf("read the shared secret: %s has %d bytes: use %d to %d, for example from \"openssl rand "+
			"-hex 32\"", file, len(secret), minSecret, maxSecret)
	}
	return string(secret), nil
}
