package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func TestTruncatedFileIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := MapFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	var sum byte
	err = m.Do(func(b []byte) error { sum = b[60<<10]; return nil })
	if !fault.Is(err, fault.Corrupt) {
		t.Fatalf("reading a truncated mapping: got %v (%d), want a Corrupt fault", err, sum)
	}
	if strings.Contains(fault.Message(err), path) || !strings.Contains(err.Error(), path) {
		t.Errorf("the path is to be in the cause, not in the message %q: %v", fault.Message(err), err)
	}
}

// TestTruncatedInAnotherGoroutine: a fault in a goroutine without GuardMapped would end the process.
func TestTruncatedInAnotherGoroutine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := MapFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	var sum byte
	err = m.Do(func(b []byte) error {
		done := make(chan error)
		go func() { done <- GuardMapped(func() error { sum = b[60<<10]; return nil }) }()
		return <-done
	})
	if !fault.Is(err, fault.Corrupt) {
		t.Errorf("the error is %v (%d), want one of kind Corrupt", err, sum)
	}
}

func TestOnlyRegularFilesAreMapped(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	_, mapErr := Map(f)
	_, openErr := MapFile(pipe)
	for _, err := range []error{mapErr, openErr} {
		if !fault.Is(err, fault.Corrupt) || strings.Contains(fault.Message(err), dir) || !strings.Contains(err.Error(), dir) {
			t.Errorf("got %v, want Corrupt with the path in the cause alone", err)
		}
	}
}

func TestOtherPanicsStay(t *testing.T) {
	m := &Mapping{data: []byte{1}}
	defer func() {
		if recover() == nil {
			t.Error("an index out of range did not panic, want a panic")
		}
	}()
	_ = m.Do(func(b []byte) error { _ = b[len(b)+5]; return nil })
}
