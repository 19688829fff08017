package roles

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Not parallel: the umask is the process's.
func TestListenNodeAtASocket(t *testing.T) {
	file := filepath.Join(socketDir(t), "node.sock")
	leave(t, file)
	l, err := listenNode("unix:"+file, 0o660)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode of the socket = %v (error %v), want 0660", info.Mode(), err)
	}
	accepted := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, conn)
			conn.Close()
		}
		accepted <- err
	}()
	if _, err := listenNode("unix:"+file, 0o600); err == nil ||
		!strings.Contains(err.Error(), "another process listens at") {
		t.Errorf("listenNode at a socket in use: error = %v, want that another process listens", err)
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	l.Close()
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat of the closed socket: error = %v, want %v", err, os.ErrNotExist)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenNode("unix:"+file, 0o600); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("listenNode at a file: error = %v, want that it is not a socket", err)
	}
}
