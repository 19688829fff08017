package gateway

import (
	"bytes"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// LFS configures Git LFS.
type LFS struct {
	// URL is the URL of this server for clients; nil: that of the request.
	URL *url.URL
	// Tokens are for clients of SSH that use the API.
	Tokens *auth.LFSTokens
}

// LFSLogin is the response to git-lfs-authenticate (git-lfs, docs/api/authentication.md).
type LFSLogin struct {
	Href      string            `json:"href"`
	Header    map[string]string `json:"header,omitempty"`
	ExpiresIn int               `json:"expires_in"` // seconds
}

// LFSLogin returns where and how a caller who came over SSH can use the API of Git LFS. Authorize has permitted the
// operation of the token, which is empty for an anonymous caller. The error is Invalid if the URL of this server is not
// known.
func (r *Request) LFSLogin(token string) (login LFSLogin, err error) {
	if r.LFS.URL == nil {
		return login, fault.New(fault.Invalid,
			"this server does not know its URL for Git LFS over HTTP: the operator has to set lfs.url, or use git-lfs 3.0 or "+
				"later, which transfers objects over SSH")
	}
	at := *r.LFS.URL
	at.Path = strings.TrimSuffix(at.Path, "/") + "/" + r.Repo.String() + "/info/lfs"
	login = LFSLogin{Href: at.String(), ExpiresIn: int(auth.LFSTokenLife / time.Second)}
	if token != "" {
		login.Header = map[string]string{"Authorization": token}
	}
	return login, nil
}

// ErrNoLFS is the error of a server without Git LFS.
var ErrNoLFS = fault.New(fault.NotFound, "Git LFS is not supported by this server")

// LFSBatch has a node return the states of objects, in their order.
func (r *Request) LFSBatch(batch lfs.Batch, response *Response) (states []lfs.Status) {
	r.relayLFS(batch.Upload, response, func(n router.Node, repo git.RepoPath, session node.Session) (o node.Outcome,
		err error) {
		states, o, err = n.LFSBatch(r.Ctx, repo, session, batch)
		return o, err
	})
	return states
}

// FindLFS fails with NotFound if the repository does not have an object.
func (r *Request) FindLFS(object lfs.Object, response *Response) {
	states := r.LFSBatch(lfs.Batch{Objects: []lfs.Object{object}}, response)
	switch {
	case r.Err != nil:
	case states[0].State == lfs.Missing:
		r.Err = fault.New(fault.NotFound, "this repository does not have the LFS object %s of %d bytes", object.OID,
			object.Size)
	case states[0].State == lfs.Refused:
		r.Err = states[0].Err
	}
}

// LFSDownload has a node send an object or a part of it.
func (r *Request) LFSDownload(download lfs.Download, response *Response) {
	r.relayLFS(false, response, func(n router.Node, repo git.RepoPath, session node.Session) (node.Outcome, error) {
		return n.LFSDownload(r.Ctx, repo, session, download, response)
	})
	r.Outcome.LFS.Object = download.OID.String()
	if r.Outcome.LFS.Bytes = 0; response.Begun() { // the client determines the rest
		r.Outcome.LFS.Bytes = r.Bytes.Sent
		r.Rating = &Rating{Class: inflight.ClassHit, Latency: response.begun.Sub(r.start)}
		if pack := r.Outcome.LFS.Cache; pack != "" && pack != "hit" { // a mirror's object that was not here
			r.Rating.Class = inflight.ClassCold
		}
	}
}

// LFSContent returns an object, for a page.
func (r *Request) LFSContent(o lfs.Object) ([]byte, error) {
	to := &memorySink{}
	err := r.lfsOfPage(to, func(response *Response) {
		r.relayLFS(false, response, func(n router.Node, repo git.RepoPath, session node.Session) (node.Outcome, error) {
			return n.LFSDownload(r.Ctx, repo, session, lfs.Download{Object: o, Length: o.Size}, response)
		})
	})
	if err == nil && int64(to.Len()) != o.Size {
		err = fault.New(fault.Internal, "the storage node sent %d of %d bytes of an LFS object", to.Len(), o.Size)
	}
	return to.Bytes(), err
}

// LFSStates returns the states of objects, for a page. No object is read, or downloaded from an origin.
func (r *Request) LFSStates(list []lfs.Object) (states []lfs.Status, err error) {
	err = r.lfsOfPage(&memorySink{}, func(response *Response) {
		states = r.LFSBatch(lfs.Batch{Objects: list}, response)
	})
	return states, err
}

// lfsOfPage makes a call for a page. The request itself does not fail with the call.
func (r *Request) lfsOfPage(to Sink, call func(*Response)) error {
	seat, err := r.Lanes.Small.Enter(r.Caller())
	if err != nil {
		return err
	}
	defer seat.Leave()
	outcome := r.Outcome
	call(NewResponse(r, to, seat, EmptyBody()))
	err = r.Err
	r.Outcome, r.Err = outcome, nil
	return err
}

// memorySink keeps a response.
type memorySink struct{ bytes.Buffer }

// Begin implements Sink.
func (*memorySink) Begin() error { return nil }

// Flush implements Sink.
func (*memorySink) Flush() error { return nil }

// SetLength implements Sink.
func (*memorySink) SetLength(int64) {}

// ExpectSilence implements Sink.
func (*memorySink) ExpectSilence() {}

// LFSUpload has a node take an object, and returns how many bytes of it are stored now. The response is required: no
// other node is tried after the first byte of its body was read.
func (r *Request) LFSUpload(upload lfs.Upload, content io.Reader, response *Response) (size int64) {
	in := &timedReader{r: content, last: time.Now()}
	r.relayLFS(true, response, func(n router.Node, repo git.RepoPath, session node.Session) (o node.Outcome, err error) {
		session.StoreID = r.storeID
		size, o, err = n.LFSUpload(r.Ctx, repo, session, upload, in)
		return o, err
	})
	r.Outcome.Command, r.Outcome.LFS.Object, r.Outcome.LFS.Bytes = node.CommandLFSUpload, upload.OID.String(), in.n
	if r.Err != nil && response.body.failed() && !fault.Is(r.Err, fault.Invalid) {
		r.Err = fault.Wrap(fault.Invalid, "the upload was cut off or took too long", r.Err)
	}
	r.Rating = &Rating{Class: inflight.ClassPush, Latency: time.Since(in.last)} // the client determines the rest
	return size
}

// timedReader counts bytes and notes when the last ones arrived.
type timedReader struct {
	r    io.Reader
	n    int64
	last time.Time
}

func (t *timedReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.n += int64(n)
	t.last = time.Now()
	return n, err
}

// Interrupt ends a Read that waits for the client, if the content is a Body.
func (t *timedReader) Interrupt() {
	if b, ok := t.r.(*Body); ok {
		b.Interrupt()
	}
}

// LFSPart has the node that gets uploads return how many bytes of an object have arrived.
func (r *Request) LFSPart(object lfs.Object, response *Response) (size int64) {
	r.relayLFS(true, response, func(n router.Node, repo git.RepoPath, session node.Session) (o node.Outcome, err error) {
		size, o, err = n.LFSPart(r.Ctx, repo, session, object)
		return o, err
	})
	return size
}

// LFSLocks has a node create, list or remove locks of the caller or others. Without an error, the answer has the lock
// that was created or removed. A second node would find the lock that the
// first one has created or removed, so that it is not asked.
func (r *Request) LFSLocks(request lfs.LockRequest, response *Response) (answer lfs.LockAnswer) {
	request.Caller = r.ID.Name
	r.isChange = request.Action != lfs.ListLocks
	if only := (&node.RefRules{Only: r.RefRules.Only, Credential: r.RefRules.Credential}); !only.IsZero() && r.isChange {
		reason := only.Refusal(git.RefName(request.Ref), 0)
		if reason != "" && request.Action == lfs.CreateLock || request.Force {
			r.Err = fault.New(fault.Denied, "the credential is for some refs: a lock needs one of them as ref, and locks of "+
				"others stay")
			return answer
		}
	}
	r.relayLFS(r.isChange, response, func(n router.Node, repo git.RepoPath, session node.Session) (o node.Outcome,
		err error) {
		session.StoreID = r.storeID
		answer, o, err = n.LFSLocks(r.Ctx, repo, session, request)
		return o, err
	})
	if r.isChange && len(answer.Locks) == 1 {
		r.lock = &answer.Locks[0]
	} else if r.isChange && r.Err == nil {
		r.Err = fault.New(fault.Internal, "the storage node returned %d locks instead of one", len(answer.Locks))
	}
	return answer
}

// relayLFS has a node answer a request of Git LFS. Requests that change something, and those about uploads, go to the
// same nodes as pushes. Without a response, the request is admitted for the time of the call.
func (r *Request) relayLFS(isPush bool, response *Response,
	call func(router.Node, git.RepoPath, node.Session) (node.Outcome, error)) {
	if response == nil {
		seat, err := r.Enter()
		if err != nil {
			r.Err = err
			return
		}
		defer seat.Leave()
	}
	session := node.Session{Service: protocol.UploadPack, Stateless: true}
	if isPush {
		session.Service = protocol.ReceivePack
	}
	r.complete(&session)
	r.relay(response, func(n router.Node, repo git.RepoPath) (node.Outcome, error) { return call(n, repo, session) })
}
