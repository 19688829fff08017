package gitssh_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
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
	return states, node.Outcome{Command: node.CommandLFSBatch, LFS: node.LFSOutcome{Objects: uint32(len(b.Objects))}}, nil
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
