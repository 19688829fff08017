package app

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// smallDisk is a directory on a separate file system, of so many bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "app")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprint("size=", size)); err != nil {
		if os.Getenv("CI") != "" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skip("*** No file system of a test's own can be mounted here: a full one is NOT tested. ***", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// room is how many bytes a disk has left.
func room(t *testing.T, dir string) uint64 {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return s.Bavail * uint64(s.Bsize)
}

// post sends a body and returns the response, which may come before the end of the body. If the connection is reset
// instead, it tries again.
func (f *front) post(content []byte, chunks bool) (status int, answer string) {
	f.t.Helper()
	head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", len(content))
	end := ""
	if chunks {
		head = fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n",
			len(content))
		end = "\r\n0\r\n\r\n"
	}
	wait(f.t, "an answer", func() bool {
		c := f.dial()
		defer c.Close()
		sent := make(chan bool)
		go func() {
			defer close(sent)
			for _, part := range [][]byte{[]byte(head), content, []byte(end)} {
				if _, err := c.Write(part); err != nil {
					return
				}
			}
		}()
		defer func() { c.Close(); <-sent }()
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return false
		}
		b, err := io.ReadAll(response.Body)
		status, answer = response.StatusCode, string(b)
		return err == nil
	})
	return status, answer
}

// Where the disk for long bodies is full, these are refused, with a sentence, before a worker is asked. Others are
// served, and nothing is left.
func TestFullDiskForBodies(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, 4<<20)
	hold, arrived := make(chan bool), make(chan bool)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for {
			r := request(in)
			if r == "" {
				return
			}
			head, body, _ := strings.Cut(r, "\r\n\r\n")
			if strings.Contains(head, "X-Hold") {
				arrived <- true
				<-hold
			}
			_, _ = io.WriteString(c, ok(fmt.Sprintf("%x", sha256.Sum256([]byte(body)))))
		}
	})
	f := newFront(t, Options{Bodies: Bodies{Dir: dir},
		Workers: []WorkerOptions{{Name: "w0", Address: w.address, Slots: 2}}, KeepIdle: time.Hour, HeaderTimeout: time.Hour})
	before := room(t, dir)
	body := func(size int) []byte {
		b := make([]byte, size)
		_, _ = rand.Read(b)
		return b
	}
	sum := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

	first := body(3 << 20) // is on the disk for as long as it is held
	held := make(chan string, 1)
	go func() {
		status, _, got, err := f.do(http.MethodPost, "/", strings.NewReader(string(first)), "X-Hold: 1")
		held <- fmt.Sprint(status, got, err)
	}()
	<-arrived
	for _, chunks := range []bool{false, true} {
		status, text := f.post(body(2<<20), chunks)
		if status != http.StatusInsufficientStorage || !strings.Contains(text, "the server's disk is full") {
			t.Errorf("chunks %v: %d %q", chunks, status, text)
		}
		r := <-f.records
		for r.Status == 0 {
			r = <-f.records
		}
		if r.Status != http.StatusInsufficientStorage || r.Tries != 0 || r.Err == nil ||
			!strings.Contains(r.Err.Error(), "the disk of "+dir+" is full") {
			t.Errorf("chunks %v: %+v", chunks, r)
		}
		small := body(60_000)
		if status, text := f.post(small, chunks); status != 200 || text != sum(small) {
			t.Errorf("what needs no disk: %d %q", status, text)
		}
		for r := <-f.records; r.Status != 200; r = <-f.records { // the refused one may have been sent again
		}
	}
	hold <- true
	if got := <-held; got != fmt.Sprint(200, sum(first), nil) {
		t.Errorf("what was on the disk: %s", got)
	}
	wait(t, "the disk is empty again", func() bool { return room(t, dir) == before })
	second := body(3 << 20)
	if status, text := f.post(second, true); status != 200 || text != sum(second) {
		t.Errorf("afterwards: %d %q", status, text)
	}
	wait(t, "nothing is left", func() bool {
		return room(t, dir) == before && f.disk.used.Load() == 0 && f.memory.used.Load() == 0 && f.Workers()[0].InFlight == 0
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// Where it is full while an answer waits for its client, the answer goes on at the client's speed, and is whole; the
// log has the reason once. A client that disconnects leaves no file.
func TestFullDiskForAnswers(t *testing.T) {
	t.Parallel()
	w, content := serveLong(t)
	other, _ := serveLong(t)
	for _, path := range []string{"/long", "/chunks"} {
		for _, leaves := range []bool{false, true} {
			t.Run(fmt.Sprint(path[1:], ", leaves ", leaves), func(t *testing.T) {
				t.Parallel()
				dir := smallDisk(t, 2<<20)
				var log logged
				f := newFront(t, Options{Bodies: Bodies{Dir: dir},
					Workers: []WorkerOptions{{Name: "w0", Address: w.address, Slots: 1},
						{Name: "w1", Address: other.address, Slots: 1}}, Log: log.logger()})
				before := room(t, dir)
				c := f.dial()
				defer c.Close()
				_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
				wait(t, "the disk is full", func() bool { return len(log.all()) > 0 })
				if lines := log.all(); len(lines) != 1 || !strings.Contains(lines[0], "dir="+dir) ||
					!strings.Contains(lines[0], "no space left") {
					t.Errorf("the log says %q", lines)
				}
				if status, _, body, err := f.get("/"); err != nil || status != 200 || body != "short" {
					t.Errorf("another request: %d %q, %v", status, body, err)
				}
				<-f.records
				if leaves {
					c.Close()
				} else {
					response, err := http.ReadResponse(bufio.NewReader(c), nil)
					if err != nil {
						t.Fatal(err)
					}
					if b, err := io.ReadAll(response.Body); err != nil || string(b) != string(content) {
						t.Errorf("%d bytes, %v", len(b), err)
					}
				}
				if r := <-f.records; r.Cut != leaves || (r.Err != nil) != leaves || r.Spooled == 0 {
					t.Errorf("%+v", r)
				}
				wait(t, "nothing is left", func() bool {
					return room(t, dir) == before && f.disk.used.Load() == 0 && f.memory.used.Load() == 0 &&
						f.Workers()[0].InFlight+f.Workers()[1].InFlight == 0
				})
				if n := len(log.all()); n != 1 {
					t.Errorf("the log has %d lines", n)
				}
			})
		}
	}
}
