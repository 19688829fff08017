package origin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
	"github.com/packhorse-git/packhorse/internal/node"
)

// LFSRepository is the LFS server of a repository at an origin: batches, downloads, uploads and locks. Errors have
// kinds of package fault. Unauthenticated and Denied are about Auth.
//
// Nothing that the server sends is trusted. URLs have to be at hosts that the origin's configuration allows, and the
// caller checks the content of objects.
type LFSRepository struct {
	Origin *Origin
	Path   string      // below the origin's URL
	Auth   node.Secret // of the caller; zero means the mirror's own credential, which only reads
}

// maxDocument is the maximum size of a response's document in bytes.
const maxDocument = 16 << 20

// lfsCall is a request to the API.
type lfsCall struct {
	method string
	path   string // below ".../info/lfs"
	query  url.Values
	writes bool
	in     any // document of the request; nil: none
}

// send sends a request and decodes the document of its response.
func (r LFSRepository) send(ctx context.Context, a lfsCall, out any) error {
	q := Request{Operation: OperationAPI, Path: r.Path, Suffix: "/info/lfs" + a.path, Query: a.query,
		Method: a.method, Auth: r.Auth, Writes: a.writes, Header: http.Header{"Accept": {wire.MediaType}}}
	return r.exchange(ctx, q, a.in, out)
}

// exchange sends a request with a document, if in is not nil, and decodes the response, if out is not nil.
func (r LFSRepository) exchange(ctx context.Context, q Request, in, out any) error {
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		q.Body, q.Length = bytes.NewReader(body), int64(len(body))
		q.Header.Set("Content-Type", wire.MediaType)
	}
	response, err := r.Origin.Do(ctx, q)
	if err != nil {
		return r.explain(err)
	}
	defer response.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxDocument)).Decode(out); err != nil {
		if _, ok := errors.AsType[*fault.Error](err); ok {
			return err // of the connection
		}
		return fault.Wrap(fault.Unavailable, "the LFS server of origin "+r.Origin.Host()+" sent an invalid answer", err)
	}
	return nil
}

// explain adds the message of the server to an error.
func (r LFSRepository) explain(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	kind := fault.KindOf(err)
	switch e.Status {
	case http.StatusConflict:
		kind = fault.Exists
	case http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		kind = fault.Invalid
	}
	message := fault.Message(err)
	var document wire.Error
	if json.Unmarshal(e.Body, &document) == nil && document.Message != "" {
		message += ": " + Printable(document.Message)
	}
	return &fault.Error{Kind: kind, Msg: message, RetryAfter: fault.RetryAfter(err),
		CallerLimit: fault.IsCallerLimit(err), Err: e}
}
