package remote_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// objects is a node.LFS that keeps objects in a directory, and what arrived of the others.
type objects struct {
	dir     string
	mu      sync.Mutex
	parts   map[lfs.OID][]byte
	locks   []lfs.Lock
	ref     string                // of the last batch or upload
	onBytes func(total int) error // called with each part of an upload that arrives; may be nil
}

func newObjects(t *testing.T) *objects {
	return &objects{dir: t.TempDir(), parts: map[lfs.OID][]byte{}}
}

func (s *objects) file(id lfs.OID) string { return filepath.Join(s.dir, id.String()) }

func (s *objects) add(t *testing.T, content []byte) lfs.Object {
	t.Helper()
	o := lfs.Object{OID: sha256.Sum256(content), Size: int64(len(content))}
	if err := os.WriteFile(s.file(o.OID), content, 0o444); err != nil {
		t.Fatal(err)
	}
	return o
}

func (s *objects) LFSBatch(_ context.Context, _ git.RepoPath, session node.Session, b lfs.Batch) ([]lfs.Status,
	node.Outcome, error) {
	o := node.Outcome{Command: node.CommandLFSBatch, LFS: node.LFSOutcome{Objects: uint32(len(b.Objects))}}
	s.ref = b.Ref
	if session.Caller == "nobody" {
		return nil, o, fault.New(fault.Full, "the disk is full")
	}
	found := make([]lfs.Status, len(b.Objects))
	for i, object := range b.Objects {
		switch info, err := os.Stat(s.file(object.OID)); {
		case object.OID[0] == 0xff:
			found[i] = lfs.Status{State: lfs.Refused, Err: fault.New(fault.Full, "the quota is used up")}
			o.Reason = "quota"
		case err == nil && info.Size() == object.Size:
			found[i].State = lfs.Present
		}
	}
	return found, o, nil
}

func (s *objects) LFSDownload(_ context.Context, _ git.RepoPath, _ node.Session, d lfs.Download,
	w node.ResponseWriter) (node.Outcome, error) {
	o := node.Outcome{Command: node.CommandLFSDownload, LFS: node.LFSOutcome{Objects: 1}}
	f, err := os.Open(s.file(d.OID))
	if err != nil {
		return o, fault.Wrap(fault.NotFound, "no such object", err)
	}
	defer f.Close()
	n := d.Size - d.Offset
	if d.Length >= 0 {
		n = min(n, d.Length)
	}
	w.SetLength(n)
	if err := w.StartBulk(false); err != nil {
		return o, err
	}
	o.LFS.Bytes, err = io.Copy(w, &bulk.Section{File: f, Offset: d.Offset, N: n})
	return o, err
}

func (s *objects) LFSUpload(_ context.Context, _ git.RepoPath, _ node.Session, u lfs.Upload,
	content io.Reader) (int64, node.Outcome, error) {
	o := node.Outcome{Command: node.CommandLFSUpload, LFS: node.LFSOutcome{Objects: 1}}
	if _, err := os.Stat(s.file(u.OID)); err == nil {
		return u.Size, o, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ref = u.Ref
	if u.Offset > int64(len(s.parts[u.OID])) {
		return 0, o, fault.New(fault.Invalid, "the upload begins after the end of what is here")
	}
	part := s.parts[u.OID][:u.Offset]
	buf := make([]byte, 64<<10)
	for {
		n, err := content.Read(buf)
		part = append(part, buf[:n]...)
		s.parts[u.OID] = part
		if s.onBytes != nil && err == nil {
			err = s.onBytes(len(part))
		}
		if err == io.EOF {
			break
		} else if err != nil {
			return int64(len(part)), o, err
		}
	}
	if int64(len(part)) < u.Size && u.Partial {
		return int64(len(part)), o, nil
	}
	if sha256.Sum256(part) != u.OID {
		delete(s.parts, u.OID)
		o.Reason = "hash"
		return 0, o, fault.New(fault.Invalid, "the content has another hash")
	}
	return u.Size, o, os.WriteFile(s.file(u.OID), part, 0o444)
}

func (s *objects) LFSPart(_ context.Context, _ git.RepoPath, _ node.Session, o lfs.Object) (int64, node.Outcome,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.parts[o.OID])), node.Outcome{Command: node.CommandLFSUpload}, nil
}

func (s *objects) LFSLocks(_ context.Context, _ git.RepoPath, _ node.Session, q lfs.LockRequest) (lfs.LockAnswer,
	node.Outcome, error) {
	o := node.Outcome{Command: node.CommandLFSLocks}
	switch q.Action {
	case lfs.CreateLock:
		for _, l := range s.locks {
			if l.Path == q.Path {
				return lfs.LockAnswer{Locks: []lfs.Lock{l}}, o, fault.New(fault.Exists, "already locked")
			}
		}
		l := lfs.Lock{ID: "1", Path: q.Path, Owner: q.Caller, Time: time.Unix(1e9, 0).UTC(), Ours: true}
		s.locks = append(s.locks, l)
		return lfs.LockAnswer{Locks: []lfs.Lock{l}}, o, nil
	case lfs.ListLocks:
		return lfs.LockAnswer{Locks: s.locks, Next: "more"}, o, nil
	}
	return lfs.LockAnswer{}, o, fault.New(fault.NotFound, "no lock with the ID %q", q.ID)
}

var app, _ = git.ParseRepoPath("app")

func TestLFSBatch(t *testing.T) {
	t.Parallel()
	s := newObjects(t)
	w := newWorld(t, options{lfs: s})
	here := s.add(t, []byte("here"))
	b := lfs.Batch{Ref: "refs/heads/main", Objects: make([]lfs.Object, lfs.MaxBatch)}
	for i := range b.Objects {
		b.Objects[i] = lfs.Object{OID: lfs.OID{0xff, byte(i >> 8), byte(i)}, Size: int64(i)}
	}
	b.Objects[1], b.Objects[2] = here, lfs.Object{OID: lfs.OID{1}, Size: 1}
	found, o, err := w.remote.LFSBatch(t.Context(), app, node.Session{}, b)
	if err != nil || len(found) != len(b.Objects) || o.Command != node.CommandLFSBatch || o.LFS.Objects != lfs.MaxBatch ||
		o.LFS.Refused != lfs.MaxBatch-2 || o.Reason != "quota" {
		t.Fatalf("LFSBatch() = %d states, %+v, %v, want %d", len(found), o, err, len(b.Objects))
	}
	if s.ref != b.Ref {
		t.Errorf("ref of the batch = %q, want %q", s.ref, b.Ref)
	}
	for i, want := range []lfs.State{lfs.Refused, lfs.Present, lfs.Missing, lfs.Refused} {
		if found[i].State != want || (want == lfs.Refused) != fault.Is(found[i].Err, fault.Full) {
			t.Errorf("state of object %d = %v, %v, want %v", i, found[i].State, found[i].Err, want)
		}
	}
	b.Objects = append(b.Objects, here)
	if _, _, err := w.remote.LFSBatch(t.Context(), app, node.Session{}, b); !fault.Is(err, fault.Invalid) {
		t.Errorf("LFSBatch() of %d objects: %v, want Invalid", len(b.Objects), err)
	}
	_, o, err = w.remote.LFSBatch(t.Context(), app, node.Session{Caller: "nobody"}, lfs.Batch{})
	if !fault.Is(err, fault.Full) || fault.Message(err) != "the disk is full" || o.Command != node.CommandLFSBatch {
		t.Errorf("LFSBatch() on a full disk = %+v, %v, want the node's error and outcome", o, err)
	}
}

func TestLFSTransfers(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newObjects(t)
			o.lfs = s
			w := newWorld(t, o)
			for _, size := range []int{0, 1, 100_000, 3 << 20} {
				content := noise(3, size)
				object := lfs.Object{OID: sha256.Sum256(content), Size: int64(size)}
				body := trickle{bytes.NewReader(content), 5000}
				stored, outcome, err := w.remote.LFSUpload(t.Context(), app, node.Session{}, lfs.Upload{Object: object,
					Ref: "refs/heads/main"}, body)
				if s.ref != "refs/heads/main" {
					t.Errorf("ref of the upload = %q, want refs/heads/main", s.ref)
				}
				if err != nil || stored != int64(size) || outcome.Command != node.CommandLFSUpload {
					t.Fatalf("LFSUpload() of %d bytes = %d, %+v, %v", size, stored, outcome, err)
				}
				unread := failing{errors.New("it was read")}
				if stored, _, err := w.remote.LFSUpload(t.Context(), app, node.Session{}, lfs.Upload{Object: object},
					unread); err != nil || stored != int64(size) {
					t.Errorf("LFSUpload() of an object that is there = %d, %v, want %d", stored, err, size)
				}
				for _, d := range []lfs.Download{{Length: -1}, {Offset: int64(size), Length: -1},
					{Offset: int64(size / 2), Length: int64(size / 4)}} {
					d.Object = object
					want := content[d.Offset:]
					if d.Length >= 0 {
						want = want[:d.Length]
					}
					out := &answer{length: -1}
					outcome, err := w.remote.LFSDownload(t.Context(), app, node.Session{}, d, out)
					if err != nil || !bytes.Equal(out.Bytes(), want) || out.length != int64(len(want)) || out.bulk != 1 ||
						outcome.LFS.Bytes != int64(len(want)) {
						t.Errorf("LFSDownload(%d+%d of %d) = %d bytes, length %d, StartBulk %d times, %d in the outcome, %v", d.Offset,
							d.Length, size, out.Len(), out.length, out.bulk, outcome.LFS.Bytes, err)
					}
				}
			}
			missing := lfs.Download{Object: lfs.Object{Size: 1}, Length: -1}
			if _, err := w.remote.LFSDownload(t.Context(), app, node.Session{}, missing, &answer{}); !fault.Is(err,
				fault.NotFound) {
				t.Errorf("LFSDownload() of a missing object: %v, want NotFound", err)
			}
			if got := w.value("packhorse_channel_transfers_total", "end=ok"); !o.inBand && got == 0 {
				t.Error("no transfer took a side channel")
			}
		})
	}
}

// An upload that fails within its content is the node's error at the gateway. The node keeps the received bytes.
func TestLFSUploadsThatBreakOff(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newObjects(t)
			o.lfs = s
			w := newWorld(t, o)
			content := noise(4, 6<<20)
			upload := lfs.Upload{Object: lfs.Object{OID: sha256.Sum256(content), Size: int64(len(content))}}
			send := func(body io.Reader) error {
				_, _, err := w.remote.LFSUpload(t.Context(), app, node.Session{}, upload, body)
				return err
			}
			full := fault.New(fault.Full, "the disk is full")
			s.onBytes = func(total int) error {
				if total > 1<<20 {
					return full
				}
				return nil
			}
			if err := send(bytes.NewReader(content)); !fault.Is(err, fault.Full) || fault.Message(err) != "the disk is full" {
				t.Errorf("LFSUpload() on a full disk: %v, want the node's error", err)
			}
			s.onBytes = nil
			reached, hang := make(chan struct{}), make(chan struct{})
			go func() {
				<-reached
				w.kill()
				eventually(func() bool { return w.remote.Ready() != nil })
				close(hang)
			}()
			err := send(io.MultiReader(bytes.NewReader(content[:4<<20]), &ending{reached: reached, hang: hang}))
			if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "upload the object again") {
				t.Errorf("LFSUpload() to a node that is killed: %v, want Unavailable", err)
			}
			if !eventually(func() bool { return w.remote.Ready() != nil }) {
				t.Error("a node that was killed is ready")
			}
			if err := send(failing{errors.New("it was read")}); !fault.Is(err, fault.Unavailable) {
				t.Errorf("LFSUpload() without a node: %v, want Unavailable", err)
			}
			w.serve()
			if !eventually(func() bool { return w.remote.Ready() == nil }) {
				t.Fatal("a node that came back is not ready")
			}
			here, _, err := w.remote.LFSPart(t.Context(), app, node.Session{}, upload.Object)
			if err != nil || here == 0 || here >= upload.Size {
				t.Errorf("LFSPart() = %d, %v, want some of %d", here, err, upload.Size)
			}
			upload.Offset = here
			if err := send(bytes.NewReader(content[here:])); err != nil {
				t.Errorf("LFSUpload() of the rest: %v", err)
			}
			upload.Offset = 1
			if err := send(bytes.NewReader(content[1:])); err != nil {
				t.Errorf("LFSUpload() of what is there: %v", err)
			}
		})
	}
}

// The part of an upload is at another node after a failover. The size there decides from where the client continues.
func TestLFSUploadAfterAFailover(t *testing.T) {
	t.Parallel()
	first, second := newObjects(t), newObjects(t)
	one, two := newWorld(t, options{lfs: first}), newWorld(t, options{lfs: second})
	content := noise(5, 1<<20)
	object := lfs.Object{OID: sha256.Sum256(content), Size: int64(len(content))}
	stored, _, err := one.remote.LFSUpload(t.Context(), app, node.Session{}, lfs.Upload{Object: object, Partial: true},
		bytes.NewReader(content[:1<<19]))
	if err != nil || stored != 1<<19 {
		t.Fatalf("LFSUpload() of the first half = %d, %v, want %d", stored, err, 1<<19)
	}
	one.kill()
	upload := lfs.Upload{Object: object, Offset: stored}
	if _, _, err := two.remote.LFSUpload(t.Context(), app, node.Session{}, upload,
		bytes.NewReader(content[stored:])); !fault.Is(err, fault.Invalid) {
		t.Errorf("LFSUpload() of the second half to another node: %v, want Invalid", err)
	}
	if stored, _, err = two.remote.LFSPart(t.Context(), app, node.Session{}, object); err != nil || stored != 0 {
		t.Errorf("LFSPart() at another node = %d, %v, want 0", stored, err)
	}
	if _, _, err := two.remote.LFSUpload(t.Context(), app, node.Session{}, lfs.Upload{Object: object},
		bytes.NewReader(content)); err != nil {
		t.Errorf("LFSUpload() of all to another node: %v", err)
	}
}

// A download that breaks off does not look complete.
func TestLFSDownloadFromAKilledNode(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newObjects(t)
			o.lfs = s
			w := newWorld(t, o)
			object := s.add(t, noise(6, 40<<20))
			var once sync.Once
			out := &answer{onWrite: func(total int) error {
				if total > 1<<20 {
					once.Do(w.kill)
				}
				return nil
			}}
			_, err := w.remote.LFSDownload(t.Context(), app, node.Session{}, lfs.Download{Object: object, Length: -1}, out)
			if o.unix && err == nil { // the gateway has the open file
				return
			}
			if !fault.Is(err, fault.Unavailable) || int64(out.Len()) == object.Size {
				t.Errorf("LFSDownload() from a killed node = %d bytes, %v, want fewer than %d and Unavailable", out.Len(), err,
					object.Size)
			}
		})
	}
}

func TestLFSLocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{lfs: newObjects(t)})
	ask := func(q lfs.LockRequest) (lfs.LockAnswer, error) {
		found, o, err := w.remote.LFSLocks(t.Context(), app, node.Session{}, q)
		if o.Command != node.CommandLFSLocks {
			t.Errorf("outcome of %+v = %+v, want the command %s", q, o, node.CommandLFSLocks)
		}
		return found, err
	}
	made, err := ask(lfs.LockRequest{Action: lfs.CreateLock, Path: "a\xff.bin", Caller: "ada"})
	if err != nil || len(made.Locks) != 1 || made.Locks[0].Path != "a\xff.bin" || made.Locks[0].Owner != "ada" {
		t.Errorf("LFSLocks(create) = %+v, %v", made, err)
	}
	again, err := ask(lfs.LockRequest{Action: lfs.CreateLock, Path: "a\xff.bin", Caller: "bob"})
	if !fault.Is(err, fault.Exists) || !reflect.DeepEqual(again, made) {
		t.Errorf("LFSLocks(create) of a locked path = %+v, %v, want the lock and Exists", again, err)
	}
	if list, err := ask(lfs.LockRequest{Action: lfs.ListLocks}); err != nil || list.Next != "more" ||
		!reflect.DeepEqual(list.Locks, made.Locks) {
		t.Errorf("LFSLocks(list) = %+v, %v, want %+v", list, err, made)
	}
	if _, err := ask(lfs.LockRequest{Action: lfs.Unlock, ID: "x"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("LFSLocks(unlock) of no lock: %v, want NotFound", err)
	}
	if _, _, err := w.remote.LFSLocks(t.Context(), app, node.Session{}, lfs.LockRequest{
		Path: strings.Repeat("x", 9000)}); !fault.Is(err, fault.Invalid) {
		t.Errorf("LFSLocks() with a long path: %v, want Invalid", err)
	}
}
