package control

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
)

// Messages of Git LFS that no gateway sends.
func TestInvalidLFSMessages(t *testing.T) {
	t.Parallel()
	id := make([]byte, 32)
	for _, m := range []*internalv1.BatchRequest{
		{Oids: id}, {Sizes: []int64{1}}, {Oids: id[1:], Sizes: []int64{1}}, {Oids: id, Sizes: []int64{-1}},
		{Oids: make([]byte, 32*(lfs.MaxBatch+1)), Sizes: make([]int64, lfs.MaxBatch+1)},
	} {
		if b, err := batchOf(m); !fault.Is(err, fault.Invalid) {
			t.Errorf("batchOf(%d bytes, %d sizes) = %d objects, %v, want Invalid", len(m.Oids), len(m.Sizes), len(b.Objects),
				err)
		}
	}
	for _, m := range []*internalv1.LFSObject{nil, {Oid: id[1:]}, {Oid: append(id, 0)}, {Oid: id, Size: -1}} {
		if o, err := objectOf(m); !fault.Is(err, fault.Invalid) {
			t.Errorf("objectOf(%v) = %v, %v, want Invalid", m, o, err)
		}
	}
	list := internalv1.LockAction_LOCK_ACTION_LIST
	for _, m := range []*internalv1.LocksRequest{
		{}, {Action: 9}, {Action: list, Limit: -1}, {Action: list, Path: make([]byte, maxLockText+1)},
		{Action: list, Cursor: strings.Repeat("x", maxLockText+1)},
	} {
		if q, err := lockRequestOf(m); !fault.Is(err, fault.Invalid) {
			t.Errorf("lockRequestOf(%v) = %v, %v, want Invalid", m, q, err)
		}
	}
}

// The calls of Git LFS check the repository and the caller as sessions of Git do.
func TestLFSCallsAreChecked(t *testing.T) {
	t.Parallel()
	_, address := realPort(t, "tcp", Options{})
	client := internalv1connect.NewLFSServiceClient(http2Client(t, "tcp", address), "http://"+address, connect.WithGRPC())
	object := &internalv1.LFSObject{Oid: make([]byte, 32)}
	long := &internalv1.Session{Caller: strings.Repeat("x", maxCaller+1)}
	for _, c := range []struct {
		repository string
		session    *internalv1.Session
		want       connect.Code
	}{
		{"../app", nil, connect.CodeNotFound},
		{"app", long, connect.CodeInvalidArgument},
	} {
		_, batch := client.Batch(t.Context(), connect.NewRequest(&internalv1.BatchRequest{Repository: c.repository,
			Session: c.session}))
		_, part := client.Part(t.Context(), connect.NewRequest(&internalv1.PartRequest{Repository: c.repository,
			Session: c.session, Object: object}))
		_, locks := client.Locks(t.Context(), connect.NewRequest(&internalv1.LocksRequest{Repository: c.repository,
			Session: c.session, Action: internalv1.LockAction_LOCK_ACTION_LIST}))
		for call, err := range map[string]error{"Batch": batch, "Part": part, "Locks": locks} {
			if connect.CodeOf(err) != c.want {
				t.Errorf("%s of %q: %v, want %v", call, c.repository, err, c.want)
			}
		}
		download := client.Download(t.Context())
		_ = download.Send(&internalv1.SessionRequest{Part: &internalv1.SessionRequest_Start{
			Start: &internalv1.SessionStart{Repository: c.repository, Session: c.session, Object: object}}})
		if _, err := download.Receive(); connect.CodeOf(err) != c.want {
			t.Errorf("Download of %q: %v, want %v", c.repository, err, c.want)
		}
		_ = download.CloseRequest()
		_ = download.CloseResponse()
	}
	for name, start := range map[string]*internalv1.SessionStart{
		"no object":           {Repository: "app"},
		"an offset of -1":     {Repository: "app", Object: object, Offset: -1},
		"an offset of 1 in 0": {Repository: "app", Object: object, Offset: 1},
		"no start":            nil,
	} {
		upload := client.Upload(t.Context())
		m := &internalv1.SessionRequest{}
		if start != nil {
			m.Part = &internalv1.SessionRequest_Start{Start: start}
		}
		_ = upload.Send(m)
		if _, err := upload.Receive(); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("Upload with %s: %v, want InvalidArgument", name, err)
		}
		_ = upload.CloseRequest()
		_ = upload.CloseResponse()
	}
}
