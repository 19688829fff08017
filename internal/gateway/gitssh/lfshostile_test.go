package gitssh_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Messages that are not valid, or not in the right order.
func TestLFSTransferIsHostile(t *testing.T) {
	t.Parallel()
	n := newLFSNode()
	_, client := serveLFS(t, n, nil)
	n.full = true
	content := strings.Repeat("x", 300_000)
	object := lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
	name := object.OID.String()
	many := lines("batch", "delim") + strings.Repeat(lines(name+" 5"), 1_000_000)
	for _, c := range []struct {
		name, word, in, want string
		status               int
	}{
		{"a full disk", "upload", put(object, content, 60000) + lines("quit", "flush"),
			failure(507, "the disk is full") + okay, 0},
		{"an upload in a session for downloads", "download", put(object, content, 60000) + lines("quit", "flush"),
			failure(403, "put-object is not for sessions with the word download") + okay, 0},
		{"a lock in a session for downloads", "download", lines("lock", "path=x", "flush"),
			failure(403, "lock is not for sessions with the word download"), 0},
		{"a download in a session for uploads", "upload", lines("get-object "+name, "size=1", "flush"),
			failure(403, "get-object is not for sessions with the word upload"), 0},
		{"a missing object", "download", lines("get-object "+name, "size=1", "flush"), failure(404, "no such object"), 0},
		{"a path instead of an ID", "upload", lines("put-object ../../../../etc/passwd", "size=4", "delim", "x", "flush") +
			lines("quit", "flush"), failure(400, `"../../../../etc/passwd" is not the ID of an LFS object: it has to have `+
			`64 digits`) + okay, 0},
		{"a wrong size", "upload", put(lfs.Object{OID: object.OID, Size: 5}, content, 60000), "status 400", 1},
		{"a negative size", "download", lines("get-object "+name, "size=-1", "flush"),
			failure(400, `invalid size of an LFS object: "-1"`), 0},
		{"no size", "download", lines("get-object "+name, "flush"), failure(400, `invalid size of an LFS object: ""`), 0},
		{"no content", "upload", lines("put-object "+name, "size=300000", "flush"), "status 400", 0},
		{"a refused object", "upload", lines("batch", "delim", name+" 9223372036854775807", "flush"),
			failure(507, "the quota is used up"), 0},
		{"another hash", "upload", lines("batch", "hash-algo=sha512", "delim", name+" 1", "flush"),
			failure(400, `hash algorithm "sha512": only sha256 is supported`), 0},
		{"a command of nobody", "upload", lines("fetch", "delim", "x", "flush") + lines("quit", "flush"),
			failure(400, `unknown command "fetch"`) + okay, 0},
		{"another version", "upload", lines("version 2", "flush"),
			failure(400, `unknown version "2": this server has version 1`), 0},
		{"a huge line", "upload", lines("lock", "path="+strings.Repeat("x", 60000), "flush"), "status 400", 1},
		{"a huge line in a batch", "upload", lines("batch", "delim", strings.Repeat("x", 60000), "flush") +
			lines("quit", "flush"), failure(400, "a line of 60001 bytes: the maximum is 8192") + okay, 0},
		{"endless arguments", "upload", strings.Repeat(lines("x=y"), 100), "status 400", 1},
		{"different endless arguments", "upload", func() (in string) {
			in = lines("batch")
			for i := range 100 {
				in += lines(fmt.Sprintf("x%d=y", i))
			}
			return in
		}(), "status 400", 1},
		{"a batch of a million objects", "upload", many, "status 400", 1},
		{"no packets", "upload", "zzzz", "status 400", 1},
		{"an end in a message", "upload", lines("batch", "x=y"), "status 400", 1},
		{"only a flush", "upload", "0000", "status 400", 1},
		{"no commands", "upload", "", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, status := transfer(t, client, c.word, c.in)
			if prefix, ok := strings.CutPrefix(c.want, "status "); ok && len(prefix) == 3 {
				if !strings.HasPrefix(got, "000f"+c.want) {
					t.Errorf("answer = %q, want %s", got, c.want)
				}
			} else if got != c.want {
				t.Errorf("answer = %q, want %q", got, c.want)
			}
			if status != c.status {
				t.Errorf("exit status = %d, want %d", status, c.status)
			}
		})
	}
	out, _, _ := run(t, client, "", "git-lfs-transfer app upload", lines("batch", "delim", "flush"))
	if want := hello + failure(400, "the first command has to be version 1"); out != want {
		t.Errorf("session without a version = %q, want %q", out, want)
	}
	if len(n.objects) > 0 {
		t.Errorf("%d objects were uploaded, want none", len(n.objects))
	}
}

// An upload whose client leaves is not complete, and a download that breaks off does not look so.
func TestLFSTransferBreaksOff(t *testing.T) {
	t.Parallel()
	n := newLFSNode()
	s, client := serveLFS(t, n, nil)
	content := strings.Repeat("y", 300_000)
	object := lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
	message := put(object, content, 60000)
	got, status := transfer(t, client, "upload", message[:200_000])
	if want := failure(400, "the request was cut off"); got != want || status != 1 || len(n.objects) > 0 {
		t.Errorf("upload that is cut off = %q, status %d, want %q and 1", got, status, want)
	}
	here := n.add(content)
	n.download = func(w io.Writer) error {
		_, err := io.WriteString(w, content[:150_000])
		return errors.Join(err, fault.New(fault.Corrupt, "the disk is broken"))
	}
	out, said, status := run(t, client, "", "git-lfs-transfer app download", version1+lines("get-object "+
		here.OID.String(), "size=300000", "flush")+lines("quit", "flush"))
	if strings.HasSuffix(out, "0000") || status != 1 || len(out) < 150_000 || said == "" {
		t.Errorf("download that breaks off: %d bytes that end with %q, %q, status %d, want no flush packet and 1",
			len(out), out[len(out)-4:], said, status)
	}
	if log := s.log.String(); !strings.Contains(log, "result=corrupt") {
		t.Errorf("the log has no failed download:\n%s", log)
	}
}

// A session has a place in a lane only while a command runs.
func TestLFSTransferLeavesItsLane(t *testing.T) {
	t.Parallel()
	n := newLFSNode()
	s, client := serveLFS(t, n, nil)
	object := n.add("content")
	inLane := make(chan float64, 1)
	n.download = func(w io.Writer) error {
		inLane <- s.value("packhorse_lane_running{lane=hit}")
		_, err := io.WriteString(w, "content")
		return err
	}
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	in, _ := session.StdinPipe()
	out, _ := session.StdoutPipe()
	if err := session.Start("git-lfs-transfer app download"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(in, version1+lines("get-object "+object.OID.String(), "size=7", "flush"))
	want := hello + okay + lines("status 200", "size=7", "delim") + "000bcontent0000"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(out, got); err != nil || string(got) != want {
		t.Errorf("session = %q, %v, want %q", got, err, want)
	}
	if n := <-inLane; n != 1 {
		t.Errorf("downloads in the lane of hits = %v, want 1", n)
	}
	for _, lane := range []string{"small", "hit"} {
		name := "packhorse_lane_running{lane=" + lane + "}"
		if !eventually(func() bool { return s.value(name) == 0 }) {
			t.Errorf("%s of an idle session = %v, want 0", name, s.value(name))
		}
	}
	in.Close()
	if err := session.Wait(); err != nil {
		t.Errorf("session at the end of its input: %v, want no error", err)
	}
}

// Silent clients, and those that read nothing, do not keep their sessions.
func TestLFSTransferTimesOut(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("z", 8<<20)
	for name, c := range map[string]struct {
		change func(*gitssh.Options)
		in     func(lfs.Object) string
	}{
		"between commands": {func(o *gitssh.Options) { o.SessionIdle = 50 * time.Millisecond },
			func(lfs.Object) string { return version1 }},
		"within a message": {func(o *gitssh.Options) { o.ReadStall = 50 * time.Millisecond },
			func(lfs.Object) string { return version1 + lines("batch", "x=y") }},
		"within a batch": {func(o *gitssh.Options) { o.ReadStall = 50 * time.Millisecond },
			func(lfs.Object) string { return version1 + lines("batch", "delim") }},
		"within an upload": {func(o *gitssh.Options) { o.ReadStall = 50 * time.Millisecond },
			func(lfs.Object) string {
				return version1 + strings.TrimSuffix(put(lfs.Object{Size: 10}, "some", 4), "0000")
			}},
		"a client that reads nothing": {func(o *gitssh.Options) { o.WriteStall = 50 * time.Millisecond },
			func(o lfs.Object) string {
				return version1 + lines("get-object "+o.OID.String(), fmt.Sprintf("size=%d", o.Size), "flush")
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newLFSNode()
			object := n.add(big)
			s, client := serveLFS(t, n, c.change)
			word := "upload"
			if strings.Contains(name, "reads nothing") {
				word = "download"
			}
			session, err := client.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			in, _ := session.StdinPipe()
			_, _ = session.StdoutPipe() // not read
			if err := session.Start("git-lfs-transfer app " + word); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(in, c.in(object))
			if !eventually(func() bool { return s.value("packhorse_ssh_sessions") == 0 }) {
				t.Error("the session has not ended")
			}
		})
	}
}

// TestLFSUploadToALostNode checks that the session goes on after the node of an upload was lost.
func TestLFSUploadToALostNode(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("w", 300_000)
	object := lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
	s := serveSSH(t, withLFS, lostNode{newLFSNode()})
	got, status := transfer(t, s.mustDial(nil), "upload", put(object, content, 60000), lines("quit", "flush"))
	if want := failure(503, "the node was lost") + okay; got != want || status != 0 {
		t.Errorf("upload to a node that is lost = %q, status %d, want %q and 0", got, status, want)
	}
}

// lostNode is a node whose connection breaks during uploads.
type lostNode struct{ *lfsNode }

func (n lostNode) LFSUpload(_ context.Context, _ git.RepoPath, _ node.Session, _ lfs.Upload,
	content io.Reader) (int64, node.Outcome, error) {
	_, _ = io.CopyN(io.Discard, content, 1000)
	content.(interface{ Interrupt() }).Interrupt()
	return 0, node.Outcome{}, fault.New(fault.Unavailable, "the node was lost")
}
