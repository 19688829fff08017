package githttp_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// lfsNode is a node with objects and locks of one repository in a directory.
type lfsNode struct {
	fakeNode
	dir string

	mu     sync.Mutex
	repos  []string // that were named
	parts  map[lfs.OID][]byte
	locks  []lfs.Lock
	refuse error // of uploads
}

func newLFSNode(t *testing.T) *lfsNode {
	return &lfsNode{dir: t.TempDir(), parts: map[lfs.OID][]byte{}}
}

func (n *lfsNode) find(repo git.RepoPath, _ string) (node.Outcome, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.repos = append(n.repos, repo.String())
	if strings.HasPrefix(repo.String(), ".packhorse/") {
		return node.Outcome{}, fault.New(fault.NotFound, "no repository %s here", repo)
	}
	return node.Outcome{LFS: node.LFSOutcome{Objects: 1}}, nil
}

func (n *lfsNode) file(id lfs.OID) string { return filepath.Join(n.dir, id.String()) }

// add gives the repository an object.
func (n *lfsNode) add(t *testing.T, content string) lfs.Object {
	t.Helper()
	o := objectOf(content)
	if err := os.WriteFile(n.file(o.OID), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return o
}

func objectOf(content string) lfs.Object {
	return lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
}

func (n *lfsNode) LFSBatch(_ context.Context, repo git.RepoPath, _ node.Session,
	b lfs.Batch) ([]lfs.Status, node.Outcome,
	error) {
	o, err := n.find(repo, "batch")
	if err != nil {
		return nil, o, err
	}
	states := make([]lfs.Status, len(b.Objects))
	for i, object := range b.Objects {
		switch info, err := os.Stat(n.file(object.OID)); {
		case err == nil && info.Size() == object.Size:
			states[i].State = lfs.Present
		case err == nil:
			states[i] = lfs.Status{State: lfs.Refused, Err: fault.New(fault.Invalid, "another size")}
			o.LFS.Refused, o.Reason = o.LFS.Refused+1, "invalid"
		case object.Size > 1<<40:
			states[i] = lfs.Status{State: lfs.Refused, Err: fault.New(fault.Full, "over quota")}
			o.LFS.Refused, o.Reason = o.LFS.Refused+1, "quota"
		}
	}
	return states, o, nil
}

func (n *lfsNode) LFSDownload(_ context.Context, repo git.RepoPath, _ node.Session, d lfs.Download,
	w node.ResponseWriter) (node.Outcome, error) {
	o, err := n.find(repo, "download")
	if err != nil {
		return o, err
	}
	f, err := os.Open(n.file(d.OID))
	if err != nil {
		return o, fault.New(fault.NotFound, "no such object")
	}
	defer f.Close()
	length := d.Size - d.Offset
	if d.Length >= 0 {
		length = d.Length
	}
	if err := w.StartBulk(false); err != nil {
		return o, err
	}
	w.SetLength(length)
	_, err = io.Copy(w, &bulk.Section{File: f, Offset: d.Offset, N: length})
	return o, err
}

func (n *lfsNode) LFSUpload(_ context.Context, repo git.RepoPath, _ node.Session, u lfs.Upload,
	content io.Reader) (int64,
	node.Outcome, error) {
	o, err := n.find(repo, "upload")
	if err == nil {
		err = n.refuse
	}
	if err != nil {
		return 0, o, err
	}
	part := slices.Clone(n.parts[u.OID][:u.Offset])
	rest, readErr := io.ReadAll(io.LimitReader(content, u.Size-u.Offset+1))
	part = append(part, rest...)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.parts[u.OID] = part
	switch {
	case readErr != nil:
		return int64(len(part)), o, readErr
	case int64(len(part)) < u.Size && u.Partial:
		return int64(len(part)), o, nil
	case int64(len(part)) != u.Size || lfs.OID(sha256.Sum256(part)) != u.OID:
		return 0, o, fault.New(fault.Invalid, "the content is not that of the object")
	}
	return u.Size, o, os.WriteFile(n.file(u.OID), part, 0o600)
}

func (n *lfsNode) LFSPart(_ context.Context, repo git.RepoPath, _ node.Session, object lfs.Object) (int64, node.Outcome,
	error) {
	o, err := n.find(repo, "part")
	n.mu.Lock()
	defer n.mu.Unlock()
	return int64(len(n.parts[object.OID])), o, err
}

func (n *lfsNode) LFSLocks(_ context.Context, repo git.RepoPath, _ node.Session, q lfs.LockRequest) (a lfs.LockAnswer,
	o node.Outcome, err error) {
	if o, err = n.find(repo, "locks"); err != nil {
		return a, o, err
	}
	for _, l := range n.locks {
		l.Ours = l.Owner == q.Caller
		switch {
		case q.Action == lfs.CreateLock && l.Path == q.Path:
			return lfs.LockAnswer{Locks: []lfs.Lock{l}}, o, fault.New(fault.Exists, "%s is locked by %s", l.Path, l.Owner)
		case q.Action == lfs.Unlock && l.ID == q.ID && !l.Ours && !q.Force:
			return a, o, fault.New(fault.Denied, "the lock is %s's", l.Owner)
		case q.Action == lfs.Unlock && l.ID == q.ID:
			return lfs.LockAnswer{Locks: []lfs.Lock{l}}, o, nil
		case q.Action == lfs.ListLocks && (q.Path == "" || q.Path == l.Path):
			a.Locks = append(a.Locks, l)
		}
	}
	switch q.Action {
	case lfs.Unlock:
		return a, o, fault.New(fault.NotFound, "no lock %s", q.ID)
	case lfs.CreateLock:
		l := lfs.Lock{ID: fmt.Sprint("id", len(n.locks)), Path: q.Path, Owner: q.Caller, Time: time.Unix(1e9, 0), Ours: true}
		n.locks = append(n.locks, l)
		return lfs.LockAnswer{Locks: []lfs.Lock{l}}, o, nil
	}
	if q.Limit > 0 && len(a.Locks) > q.Limit {
		a = lfs.LockAnswer{Locks: a.Locks[:q.Limit], Next: "more"}
	}
	return a, o, nil
}

// lfsTokens are tokens for Git LFS whose owner is the login name.
var lfsTokens = auth.NewLFSTokens(func() string { return "a key for tests" },
	func(_ context.Context, login string, _ ssh.PublicKey, _ netip.Addr) (auth.Identity, bool, error) {
		return auth.Identity{Name: login, By: auth.ByKey}, false, nil
	}, nil)

// serveLFS begins a server in which alice may write team/app, bob may read it, and everybody may read open.
func serveLFS(t *testing.T, n router.Node, o options) *server {
	t.Helper()
	return serveLFSRoutes(t, []router.Route{{Replicas: []*router.Replica{{Name: "local", Node: n}}}}, o)
}

func serveLFSRoutes(t *testing.T, routes []router.Route, o options) *server {
	t.Helper()
	o.auth = callers{func(id auth.Identity, repo git.RepoPath, op auth.Operation) error {
		name := strings.TrimSuffix(repo.String(), ".git")
		switch may := id.Grant == nil || op <= id.Grant.Operation; {
		case name == "open" && op == auth.Read, name == "team/app" && id.Name == "alice" && may,
			name == "team/app" && id.Name == "bob" && op == auth.Read:
			return nil
		case id.Anonymous():
			return fault.New(fault.Unauthenticated, "say who you are")
		case name == "team/app" && (id.Name == "bob" || id.Name == "alice"):
			return fault.New(fault.Denied, "reading only")
		}
		return auth.NoRepository(repo)
	}}
	if o.lfs == nil {
		o.lfs = &gateway.LFS{Tokens: lfsTokens}
	}
	return serveRoutes(t, routes, o)
}

// do sends a request and returns the response with its body. headers are "Name: value".
func (s *server) do(method, path, body string, headers ...string) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, "http://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	response, err := transport.RoundTrip(r)
	if err != nil {
		s.t.Fatalf("%s %s error = %v, want a response", method, path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Errorf("%s %s: body error = %v, want none", method, path, err)
	}
	return response, string(text)
}

const (
	alice    = "Authorization: Bearer alice"
	bob      = "Authorization: Bearer bob"
	document = "Content-Type: " + wire.MediaType
)

func batchOf(operation string, objects ...lfs.Object) string {
	b := wire.BatchRequest{Operation: operation, Transfers: []string{"lfs-standalone-file", "basic", "tus"}}
	for _, o := range objects {
		b.Objects = append(b.Objects, wire.Object{OID: o.OID.String(), Size: o.Size})
	}
	text, _ := json.Marshal(b)
	return string(text)
}

func pathOf(o lfs.Object) string {
	return "/team/app.git/info/lfs/objects/" + o.OID.String() + "/" + strconv.FormatInt(o.Size, 10)
}
