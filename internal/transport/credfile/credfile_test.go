package credfile

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSecret(t *testing.T) {
	t.Parallel()
	const good = "0123456789abcdef"
	for _, test := range []struct {
		text string
		mode os.FileMode
		want string // a part of the error
	}{
		{good, 0o600, ""},
		{"  " + good + "\n\n", 0o640, ""},
		{good, 0o644, "chmod 600"},
		{good, 0o602, "chmod 600"},
		{good[1:], 0o600, "has 15 bytes"},
		{"", 0o600, "has 0 bytes"},
		{good + "\n" + good, 0o600, "one word"},
		{good + "\x00", 0o600, "printable"},
		{strings.Repeat("x", maxSecret+1), 0o600, "use 16 to"},
	} {
		file := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(file, []byte(test.text), test.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, test.mode); err != nil { // whatever the umask
			t.Fatal(err)
		}
		s, err := LoadSecret(file, slog.New(slog.DiscardHandler))
		switch {
		case test.want == "" && (err != nil || s.Get() != good):
			t.Errorf("secret of %q = %q, error = %v, want %q", test.text, s.Get(), err, good)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%.20q with mode %o: %v, want %q", test.text, test.mode, err, test.want)
		case err != nil && strings.Contains(err.Error(), "789abc"):
			t.Errorf("error = %v, want one without the secret", err)
		}
	}
}

func TestSecretAndAuthoritiesFollowTheirFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	secret, err := LoadSecret(put("secret", "the-very-first-secret"), log)
	if err != nil {
		t.Fatal(err)
	}
	one, _ := certificatePair(t, "one")
	two, _ := certificatePair(t, "two")
	list, err := LoadAuthorities(put("ca.pem", string(one)), log)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Now()
	secret.now = func() time.Time { return clock }
	list.now = secret.now
	before, pool := secret.Get(), list.Pool()

	put("secret", "short")
	put("ca.pem", "nothing")
	clock = clock.Add(2 * checkInterval)
	if secret.Get() != before || list.Pool() != pool || strings.Count(logged.String(), "level=ERROR") != 2 {
		t.Errorf("invalid files: secret or list changed, or not 2 errors logged, want the previous ones:\n%s", &logged)
	}
	put("secret", "another-secret-of-ours")
	put("ca.pem", string(two))
	clock = clock.Add(2 * checkInterval)
	if secret.Get() != "another-secret-of-ours" || list.Pool().Equal(pool) {
		t.Errorf("valid files: the previous secret or list is in use, want the new ones:\n%s", &logged)
	}
	if strings.Contains(logged.String(), "another-secret") {
		t.Errorf("the log contains the secret, want not:\n%s", &logged)
	}
	if _, err := LoadAuthorities(filepath.Join(dir, "none"), log); err == nil {
		t.Error("error for a missing file = nil, want one")
	}
}

// TestPipesAreNotWaitedFor replaces a file by a named pipe. The previous value stays in use, without a wait.
func TestPipesAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("the-very-first-secret")
	var logged bytes.Buffer
	s, err := LoadSecret(file, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.now = func() time.Time { return now }
	if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		now = now.Add(checkInterval)
		if got := s.Get(); got != "the-very-first-secret" {
			t.Errorf("with a pipe: secret = %q, want the first one", got)
		}
	}
	if got := logged.String(); strings.Count(got, "has become a named pipe") != 1 {
		t.Errorf("%d lines about the pipe, want 1: %s", strings.Count(got, "has become a named pipe"), got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	write("the-second-secret-of-all")
	now = now.Add(checkInterval)
	if got := s.Get(); got != "the-second-secret-of-all" {
		t.Errorf("with a file again: secret = %q, want the second one", got)
	}
}

// TestFailuresAreRetried has a load that fails although the file is good, as when there are too many open files.
func TestFailuresAreRetried(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "value")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	now, fails := time.Now(), false
	f := followed[string]{
		what: "value", files: []string{file}, log: slog.New(slog.DiscardHandler), now: func() time.Time { return now },
		load: func() (string, error) {
			if fails {
				return "", unix.EMFILE
			}
			text, err := os.ReadFile(file)
			return string(text), err
		},
		about: func(string) []any { return nil },
	}
	if err := f.first(); err != nil {
		t.Fatal(err)
	}
	write("second value")
	for _, step := range []struct {
		fails bool
		want  string
	}{{true, "first"}, {true, "first"}, {false, "second value"}} {
		fails = step.fails
		now = now.Add(2 * checkInterval)
		if got := f.get(); got != step.want {
			t.Errorf("value = %q, want %q", got, step.want)
		}
	}
}
