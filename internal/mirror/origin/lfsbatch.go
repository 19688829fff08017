package origin

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
)

const (
	batchSize     = 100 // objects of one request, as git-lfs sends
	batchRequests = 4   // concurrent ones of a Batch
	// maxAction is the maximum size of an action in bytes: of its URL and its headers.
	maxAction = 16 << 10
	maxExpiry = 24 * 3600 // seconds
)

// LFSAction is a request that the server asks for.
type LFSAction struct {
	URL     *url.URL
	Header  http.Header
	Expires time.Time // zero: unknown
	// isOpen means that the target needs no credential.
	isOpen bool
}

// LFSAnswer is the server's answer about an object. The object is Present if it can be downloaded, or need not be
// uploaded.
type LFSAnswer struct {
	lfs.Status
	Action *LFSAction // the download or the upload; nil: none
	Verify *LFSAction // after the upload; nil: none
}

// Batch asks the server about objects. Answers are in their order. Only the caller's own credential asks for uploads.
func (r LFSRepository) Batch(ctx context.Context, b lfs.Batch) ([]LFSAnswer, error) {
	answers := make([]LFSAnswer, len(b.Objects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(batchRequests)
	done := 0
	for part := range slices.Chunk(b.Objects, batchSize) {
		to := answers[done : done+len(part)]
		done += len(part)
		group.Go(func() error { return r.batch(ctx, b.Upload, b.Ref, part, to) })
	}
	return answers, group.Wait()
}

// batch asks about so many objects as one request may have.
func (r LFSRepository) batch(ctx context.Context, upload bool, ref string, objects []lfs.Object,
	answers []LFSAnswer) error {
	request := wire.BatchRequest{Operation: wire.Download, Transfers: []string{wire.Basic}, Ref: refOf(ref),
		Objects: make([]wire.Object, len(objects))}
	if upload {
		request.Operation = wire.Upload
	}
	for i, o := range objects {
		request.Objects[i] = wire.Object{OID: o.OID.String(), Size: o.Size}
	}
	var response wire.BatchResponse
	now := time.Now()
	err := r.send(ctx, lfsCall{method: http.MethodPost, path: "/objects/batch", writes: upload, in: request}, &response)
	switch {
	case err != nil:
		return err
	case response.Transfer != "" && response.Transfer != wire.Basic,
		response.HashAlgo != "" && response.HashAlgo != wire.SHA256:
		return fault.New(fault.Unavailable, "origin %s has another transfer (%s) or hash algorithm (%s) than asked for",
			r.Origin.Host(), Printable(response.Transfer), Printable(response.HashAlgo))
	}
	byOID := make(map[string]*wire.ObjectAnswer, len(response.Objects))
	for i := range response.Objects {
		byOID[response.Objects[i].OID] = &response.Objects[i]
	}
	for i, o := range objects {
		answers[i] = r.answer(o, byOID[request.Objects[i].OID], upload, now)
	}
	return nil
}

// answer translates the server's answer about an object; nil if there was none.
func (r LFSRepository) answer(o lfs.Object, w *wire.ObjectAnswer, upload bool, now time.Time) LFSAnswer {
	refuse := func(kind fault.Kind, message string) LFSAnswer {
		return LFSAnswer{Status: lfs.Status{State: lfs.Refused,
			Err: fault.New(kind, "origin %s: object %s: %s", r.Origin.Host(), o.OID, Printable(message))}}
	}
	switch {
	case w == nil:
		return refuse(fault.Unavailable, "there was no answer about it")
	case w.Error != nil:
		switch w.Error.Code {
		case http.StatusNotFound, http.StatusGone:
			if !upload {
				return LFSAnswer{}
			}
		case http.StatusUnprocessableEntity, http.StatusConflict:
			return refuse(fault.Invalid, w.Error.Message)
		case http.StatusForbidden, http.StatusUnauthorized:
			return refuse(fault.Denied, w.Error.Message)
		case http.StatusTooManyRequests:
			return refuse(fault.Exhausted, w.Error.Message)
		}
		return refuse(fault.Unavailable, w.Error.Message)
	case w.Size != o.Size && w.Size != 0:
		return refuse(fault.Invalid, "it has another size there")
	}
	sent, state := wire.Actions{}, lfs.Present
	if w.Actions != nil {
		sent = *w.Actions
	}
	main := sent.Download
	switch {
	case upload:
		if main = sent.Upload; main != nil {
			state = lfs.Missing
		}
	case main == nil:
		return LFSAnswer{}
	}
	a := LFSAnswer{Status: lfs.Status{State: state}}
	var err error
	if a.Action, err = r.action(main, w.Authenticated, now); err == nil {
		a.Verify, err = r.action(sent.Verify, w.Authenticated, now)
	}
	if err != nil {
		return LFSAnswer{Status: lfs.Status{State: lfs.Refused, Err: err}}
	}
	return a
}

// action checks and translates an action. The caller's own credential is left out: an action is kept longer than the
// request, and used for other callers. Each of them then sends its own.
func (r LFSRepository) action(w *wire.Action, isOpen bool, now time.Time) (*LFSAction, error) {
	if w == nil {
		return nil, nil
	}
	u, err := url.Parse(w.Href)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "origin "+r.Origin.Host()+" sent an invalid URL of an object", err)
	}
	if err := r.Origin.CheckHost(u); err != nil {
		return nil, err
	}
	a := &LFSAction{URL: u, Header: CleanHeader(w.Header), isOpen: isOpen, Expires: w.ExpiresAt}
	if w.ExpiresIn > 0 {
		a.Expires = now.Add(time.Duration(min(w.ExpiresIn, maxExpiry)) * time.Second)
	}
	size := len(w.Href)
	for name, value := range w.Header {
		size += len(name) + len(value)
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fault.New(fault.Unavailable, "origin %s sent an invalid header of an object: %q", r.Origin.Host(),
				Printable(name))
		}
	}
	if size > maxAction {
		return nil, fault.New(fault.Unavailable, "origin %s sent a URL and headers of more than %d bytes",
			r.Origin.Host(), maxAction)
	}
	if own := r.Auth.Reveal(); own != "" && a.Header.Get("Authorization") == own {
		a.Header.Del("Authorization")
		a.isOpen = false // also if the server says that the header is enough
	}
	return a, nil
}

// IsValid reports whether the action can still be used at a time.
func (a *LFSAction) IsValid(at time.Time) bool { return a.Expires.IsZero() || at.Before(a.Expires) }
