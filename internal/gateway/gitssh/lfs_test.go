package gitssh_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
)

// lfsNode is a node with objects and locks in memory.
type lfsNode struct {
	fakeNode
	mu       sync.Mutex
	objects  map[lfs.OID][]byte
	locks    []lfs.Lock
	full     bool                  // uploads fail after some bytes
	onUpload func()                // called after some bytes of an upload; may be nil
	download func(io.Writer) error // instead of the content; may be nil
}

func newLFSNode() *lfsNode { return &lfsNode{objects: map[lfs.OID][]byte{}} }

func (n *lfsNode) LFSBatch(_ context.Context, _ git.RepoPath, _ node.Session, b lfs.Batch) ([]lfs.Status, node.Outcome,
	error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	states := make([]lfs.Status, len(b.Objects))
	for i, o := range b.Objects {
		content, ok := n.objects[o.OID]
		switch {
		case o.Size > 1<<40:
			states[i] = lfs.Status{State: lfs.Refused, Err: fault.New(fault.Full, "the quota is used up")}
		case ok && int64(len(content)) == o.Size:
			states[i].State = lfs.Present
		}
	}
	return states, node.Outcome{Command: node.CommandLFSBatch, Objects: uint32(len(b.Objects))}, nil
}

func (n *lfsNode) LFSDownload(_ context.Context, _ git.RepoPath, _ node.Session, d lfs.Download,
	w node.ResponseWriter) (node.Outcome, error) {
	o := node.Outcome{Command: node.CommandLFSDownload}
	n.mu.Lock()
	content, ok := n.objects[d.OID]
	n.mu.Unlock()
	if !ok {
		return o, fault.New(fault.NotFound, "no such object")
	}
	w.SetLength(d.Size)
	if err := w.StartBulk(false); err != nil {
		return o, err
	}
	if n.download != nil {
		return o, n.download(w)
	}
	_, err := io.Copy(w, bytes.NewReader(content))
	return o, err
}

func (n *lfsNode) LFSUpload(_ context.Context, _ git.RepoPath, _ node.Session, u lfs.Upload,
	content io.Reader) (int64, node.Outcome, error) {
	o := node.Outcome{Command: node.CommandLFSUpload}
	n.mu.Lock()
	_, ok := n.objects[u.OID]
	n.mu.Unlock()
	if ok {
		return u.Size, o, nil
	}
	var b bytes.Buffer
	if n.full {
		if _, err := io.CopyN(&b, content, 100_000); err != nil && err != io.EOF {
			return 0, o, err
		}
		if b.Len() > 0 {
			return int64(b.Len()), o, fault.New(fault.Full, "the disk is full")
		}
	}
	if _, err := io.Copy(&b, content); err != nil {
		return 0, o, err
	}
	if int64(b.Len()) != u.Size || sha256.Sum256(b.Bytes()) != u.OID {
		return 0, o, fault.New(fault.Invalid, "the content is not that of the object")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.objects[u.OID] = b.Bytes()
	return u.Size, o, nil
}

func (n *lfsNode) LFSPart(context.Context, git.RepoPath, node.Session, lfs.Object) (int64, node.Outcome, error) {
	return 0, node.Outcome{}, nil
}

func (n *lfsNode) LFSLocks(_ context.Context, _ git.RepoPath, _ node.Session, q lfs.LockRequest) (a lfs.LockAnswer,
	o node.Outcome, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, l := range n.locks {
		l.Ours = l.Owner == q.Caller
		switch {
		case q.Action == lfs.CreateLock && l.Path == q.Path:
			return lfs.LockAnswer{Locks: []lfs.Lock{l}}, o, fault.New(fault.Exists, "already locked")
		case q.Action == lfs.Unlock && l.ID == q.ID && !l.Ours && !q.Force:
			return a, o, fault.New(fault.Denied, "the lock of another user")
		case q.Action == lfs.Unlock && l.ID == q.ID:
			n.locks = append(n.locks[:i:i], n.locks[i+1:]...)
			return lfs.LockAnswer{Locks: []lfs.Lock{l}}, o, nil
		case q.Action == lfs.ListLocks && (q.Path == "" || q.Path == l.Path):
			a.Locks = append(a.Locks, l)
		}
	}
	switch q.Action {
	case lfs.ListLocks:
		if len(a.Locks) > 1 {
			a.Next = "more"
		}
		return a, o, nil
	case lfs.Unlock:
		return a, o, fault.New(fault.NotFound, "no such lock")
	}
	l := lfs.Lock{ID: fmt.Sprint("l", len(n.locks)), Path: q.Path, Owner: q.Caller, Time: time.Unix(1e9, 0), Ours: true}
	n.locks = append(n.locks, l)
	return lfs.LockAnswer{Locks: []lfs.Lock{l}}, o, nil
}

// add adds an object, and returns its name in messages.
func (n *lfsNode) add(content string) lfs.Object {
	o := lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
	n.objects[o.OID] = []byte(content)
	return o
}

func withLFS(o *gitssh.Options) {
	at, _ := url.Parse("https://git.example.com/code/")
	o.LFS = &gateway.LFS{URL: at, Tokens: auth.NewLFSTokens(func() string { return "key" }, nil, nil)}
	o.Auth = writers{}
}

func serveLFS(t *testing.T, n *lfsNode, change func(*gitssh.Options)) (*sshServer, *ssh.Client) {
	t.Helper()
	s := serveSSH(t, func(o *gitssh.Options) {
		withLFS(o)
		if change != nil {
			change(o)
		}
	}, n)
	return s, s.mustDial(nil)
}

const (
	hello    = "000eversion=1\n000clocking\n0000"
	version1 = "000eversion 1\n0000"
	okay     = "000fstatus 200\n0000"
)

// failure is the answer to a command that failed.
func failure(status int, text string) string {
	return lines(fmt.Sprint("status ", status), "delim", text, "flush")
}

// put is the message that uploads an object, in packets of a size.
func put(o lfs.Object, content string, size int) string {
	b := []byte(lines("put-object "+o.OID.String(), fmt.Sprintf("size=%d", o.Size), "delim"))
	for len(content) > 0 {
		n := min(len(content), size)
		b = pktline.Append(b, content[:n])
		content = content[n:]
	}
	return string(pktline.AppendFlush(b))
}

// transfer runs a session of git-lfs-transfer, and returns the answers to the messages after version 1.
func transfer(t *testing.T, client *ssh.Client, word string, messages ...string) (answers string, status int) {
	t.Helper()
	out, said, status := run(t, client, "", "git-lfs-transfer '/app' "+word, version1+strings.Join(messages, ""))
	answers, ok := strings.CutPrefix(out, hello+okay)
	if !ok || said != "" {
		t.Errorf("session = %.200q, %q, want an answer to version 1", out, said)
	}
	return answers, status
}

func TestLFSTransfer(t *testing.T) {
	t.Parallel()
	n := newLFSNode()
	s, client := serveLFS(t, n, nil)
	here, content := n.add("here"), strings.Repeat("0123456789", 20_000)
	object := lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
	size := fmt.Sprintf("size=%d", object.Size)
	batch := lines("batch", "transfer=ssh", "hash-algo=sha256", "refname=refs/heads/main", "delim",
		here.OID.String()+" 4", object.OID.String()+" 200000", "flush")
	answer := func(first, second string) string {
		return lines("status 200", "hash-algo=sha256", "delim", here.OID.String()+" 4 "+first,
			object.OID.String()+" 200000 "+second, "flush")
	}
	name := object.OID.String()
	got, status := transfer(t, client, "upload", batch, lines("verify-object "+name, size, "flush"),
		put(object, content, 32768), put(object, content, 1000), lines("verify-object "+name+" 200000", "flush"),
		lines("quit", "flush"), "never read")
	want := answer("noop", "upload") + failure(404, "this repository does not have the LFS object "+name+
		" of 200000 bytes") + okay + okay + okay + okay
	if got != want || status != 0 {
		t.Errorf("upload = %q, status %d, want %q", got, status, want)
	}
	missing := strings.Repeat("0", 64) // get-object reports it; clients would ignore noop
	got, status = transfer(t, client, "download", lines("batch", "delim", missing+" 1", "flush"))
	if want := lines("status 200", "hash-algo=sha256", "delim", missing+" 1 download", "flush"); got != want ||
		status != 0 {
		t.Errorf("batch of a missing object = %q, status %d, want %q", got, status, want)
	}
	got, status = transfer(t, client, "download", batch, lines("get-object "+name, size, "flush"),
		lines("get-object "+here.OID.String(), "size=4", "flush"))
	data := string(pktline.Append(pktline.Append(pktline.Append(pktline.Append(nil, content[:65515]),
		content[65515:131030]), content[131030:196545]), content[196545:]))
	want = answer("download", "download") + lines("status 200", size, "delim") + data + "0000" +
		lines("status 200", "size=4", "delim") + "0008here0000"
	if got != want || status != 0 {
		t.Errorf("download = %.200q, status %d, want %.200q", got, status, want)
	}
	for name, want := range map[string]float64{
		"packhorse_ssh_sessions_total{command=lfs_transfer}":              3,
		"packhorse_lfs_bytes_total{operation=lfs_download}":               200_004,
		"packhorse_lfs_bytes_total{operation=lfs_upload}":                 200_000,
		"packhorse_requests_total{operation=lfs_download,result=ok}":      2,
		"packhorse_requests_total{operation=lfs_upload,result=ok}":        2,
		"packhorse_requests_total{operation=lfs_batch,result=ok}":         3,
		"packhorse_requests_total{operation=lfs_verify,result=ok}":        1,
		"packhorse_requests_total{operation=lfs_verify,result=not_found}": 1,
	} {
		if got := s.value(name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if log := s.log.String(); strings.Count(log, "operation=lfs_upload") != 2 ||
		!strings.Contains(log, "received_bytes=200000") {
		t.Errorf("the log has not a line for each upload:\n%s", log)
	}
}

func TestLFSLocks(t *testing.T) {
	t.Parallel()
	n := newLFSNode()
	_, client := serveLFS(t, n, nil)
	n.locks = []lfs.Lock{{ID: "other", Path: "b c.bin", Owner: "bob", Time: time.Unix(1e9, 0)}}
	args := func(id, path, owner string) []string {
		return []string{"id=" + id, "path=" + path, "locked-at=2001-09-09T01:46:40Z", "ownername=" + owner}
	}
	alice, bob := args("l1", "a.bin", "alice"), args("other", "b c.bin", "bob")
	got, status := transfer(t, client, "upload",
		lines("lock", "path=a.bin", "refname=refs/heads/main", "flush"),
		lines("lock", "path=b c.bin", "delim", "flush"),
		lines("list-lock", "limit=10", "flush"), lines("list-locks", "path=a.bin", "flush"),
		lines("unlock other", "flush"), lines("unlock other", "force=true", "flush"),
		lines("unlock l1", "refname=x", "flush"), lines("unlock l1", "flush"), lines("lock", "flush"),
		lines("list-lock", "limit=-1", "flush"))
	list := func(id, path, owner, who string) []string {
		return []string{"lock " + id, "path " + id + " " + path, "locked-at " + id + " 2001-09-09T01:46:40Z",
			"ownername " + id + " " + owner, "owner " + id + " " + who}
	}
	say := func(parts ...[]string) (text string) {
		for _, part := range parts {
			text += lines(part...)
		}
		return text + "0000"
	}
	mine := list("l1", "a.bin", "alice", "ours")
	want := say([]string{"status 201"}, alice) +
		say([]string{"status 409"}, bob, []string{"delim", "already locked"}) +
		say([]string{"status 200", "next-cursor=more", "delim"}, list("other", "b c.bin", "bob", "theirs"), mine) +
		say([]string{"status 200", "delim"}, mine) + failure(403, "the lock of another user") +
		say([]string{"status 200"}, bob) + say([]string{"status 200"}, alice) + failure(404, "no such lock") +
		failure(400, "lock without a path") + failure(400, `invalid limit "-1"`)
	if got != want || status != 0 {
		t.Errorf("locks = %q, status %d, want %q", got, status, want)
	}
}

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

func TestLFSAuthenticate(t *testing.T) {
	t.Parallel()
	_, client := serveLFS(t, newLFSNode(), nil)
	for _, word := range []string{"download", "upload"} {
		out, said, status := run(t, client, "", "git-lfs-authenticate '/team/a b.git' "+word, "")
		var login gateway.LFSLogin
		if err := json.Unmarshal([]byte(out), &login); err != nil || said != "" || status != 0 {
			t.Fatalf("%s = %q, %q, status %d, want JSON", word, out, said, status)
		}
		if login.Href != "https://git.example.com/code/team/a%20b.git/info/lfs" || login.ExpiresIn != 900 ||
			!strings.HasPrefix(login.Header["Authorization"], "Bearer ") {
			t.Errorf("%s = %+v, want a URL and a token", word, login)
		}
	}
	for _, words := range []string{"app", "app lock", "app upload x", "app 'upload", "", "-x upload"} {
		out, said, status := run(t, client, "", "git-lfs-authenticate "+words, "")
		if out != "" || status != 1 || !strings.Contains(said, "git-lfs-authenticate") {
			t.Errorf("git-lfs-authenticate %s = %q, %q, status %d, want a message and 1", words, out, said, status)
		}
	}
}

func TestLFSIsOff(t *testing.T) {
	t.Parallel()
	noURL := func(o *gitssh.Options) { o.LFS.URL = nil }
	_, without := serveLFS(t, newLFSNode(), func(o *gitssh.Options) { o.LFS = nil })
	_, local := serveLFS(t, newLFSNode(), noURL)
	old := serveSSH(t, withLFS, counting()).mustDial(nil)
	for _, c := range []struct {
		client        *ssh.Client
		command, want string
		status        int
	}{
		{without, "git-lfs-authenticate app upload", "Git LFS is not supported by this server", 127},
		{without, "git-lfs-transfer app upload", "Git LFS is not supported by this server", 127},
		{local, "git-lfs-authenticate app upload", "the operator has to set lfs.url", 127},
		{old, "git-lfs-transfer app upload", failure(404, "Git LFS is not supported by this server"), 0},
	} {
		out, said, status := run(t, c.client, "", c.command, version1+lines("batch", "delim", "flush"))
		if !strings.Contains(out+said, c.want) || status != c.status {
			t.Errorf("%s = %q, %q, status %d, want %q and %d", c.command, out, said, status, c.want, c.status)
		}
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
