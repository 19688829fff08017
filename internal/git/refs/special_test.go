package refs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// TestPackedRefsIsAPipe would hang if the file were opened without O_NONBLOCK, because the pipe has no writer.
func TestPackedRefsIsAPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "HEAD"), "ref: refs/heads/a\n")
	if err := os.Mkdir(filepath.Join(dir, "refs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "packed-refs"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, dir, Options{}).Snapshot(t.Context())
	if !fault.Is(err, fault.Corrupt) || strings.Contains(fault.Message(err), dir) {
		t.Errorf("got %v, want Corrupt without a path in the message", err)
	}
}
