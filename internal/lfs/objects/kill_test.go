package objects_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// killSize is the size of the object whose uploads are killed.
const killSize = 20 << 20

// TestKill kills processes during an upload, with SIGKILL. Their parts are never taken for the object, and the next
// upload continues. The killed processes run this test too.
func TestKill(t *testing.T) {
	t.Parallel()
	const variable = "PACKHORSE_TEST_LFS_KILL"
	if dir := os.Getenv(variable); dir != "" {
		uploadUntilKilled(t, dir)
		return
	}
	w := newWorld(t, objects.Options{})
	r := w.repository("app")
	content := random(killSize)
	o := objectOf(content)
	rounds := 2
	if !testing.Short() {
		rounds = 50
	}
	var before int64
	for round := range rounds {
		c := exec.Command(os.Args[0], "-test.run=^TestKill$")
		c.Env = append(os.Environ(), variable+"="+w.dir)
		out, err := c.StdoutPipe()
		if err = errors.Join(err, c.Start()); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it has begun
			t.Fatal(err)
		}
		if round > 0 {
			time.Sleep(rand.N(60 * time.Millisecond)) // it has arrived at any point
		}
		_ = c.Process.Kill()
		_ = c.Wait()
		n, err := w.UploadedBytes(t.Context(), r, o)
		if err != nil || n < before {
			t.Fatalf("UploadedBytes after the kill = %d, %v, want at least %d", n, err, before)
		}
		before = n
		got, err := w.read(r, o)
		switch {
		case fault.Is(err, fault.NotFound) && n < o.Size:
		case err == nil && n == o.Size && bytes.Equal(got, content):
			if err := errors.Join(w.Remove(r, o), w.RemovePooled(o)); err != nil {
				t.Fatal(err)
			}
			w.ExpireParts(time.Now().Add(48 * time.Hour)) // its file can be left
			before = 0
		default:
			t.Fatalf("the object after the kill: %d bytes, %v; UploadedBytes = %d", len(got), err, n)
		}
	}
	if _, err := w.Upload(t.Context(), r, lfs.Upload{Object: o, Offset: before},
		bytes.NewReader(content[before:])); err != nil {
		t.Error(err)
	}
	w.expect(r, content)
	w.expectFiles(0, 2)
}

// uploadUntilKilled continues the upload, and reports on standard output when the first bytes were written.
func uploadUntilKilled(t *testing.T, dir string) {
	s := objects.New(objects.Options{Dir: filepath.Join(dir, "pool"), MinFree: -1})
	defer s.Close()
	r := objects.Repository{Dir: filepath.Join(dir, "app"), ID: "app"}
	content := random(killSize)
	o := objectOf(content)
	n, err := s.UploadedBytes(t.Context(), r, o)
	if err != nil {
		t.Fatal(err)
	}
	rest, begun := bytes.NewReader(content[n:]), false
	body := readerFunc(func(p []byte) (int, error) {
		if !begun && rest.Len() < len(content)-int(n) {
			begun = true
			os.Stdout.WriteString(".")
		}
		return rest.Read(p[:min(len(p), 64<<10)])
	})
	_, err = s.Upload(t.Context(), r, lfs.Upload{Object: o, Offset: n}, body)
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	select {} // until it is killed
}
