package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
	"github.com/packhorse-git/packhorse/internal/node"
)

// LFSContent is a part of an object from an offset to its end. The caller closes Body. A body that ends early returns
// io.ErrUnexpectedEOF or io.EOF.
type LFSContent struct {
	Body   io.ReadCloser
	Offset int64
	ETag   string // strong; "": none
}

// ErrWrongObject is the error of a server that sends another object than the one that was asked for.
var ErrWrongObject = errors.New("the origin sent another object")

// Download sends the action of a download. It asks for the object from an offset, and gets all of it if the server has
// no ranges or the object has another ETag.
func (r LFSRepository) Download(ctx context.Context, a *LFSAction, o lfs.Object, offset int64,
	etag string) (*LFSContent, error) {
	q := r.request(a, OperationDownload, http.MethodGet)
	if offset > 0 {
		q.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		if etag != "" {
			q.Header.Set("If-Range", etag)
		}
	}
	response, err := r.Origin.Do(ctx, q)
	if err != nil {
		return nil, r.explain(err)
	}
	c := &LFSContent{Body: response.Body, ETag: response.Header.Get("ETag")}
	if !strings.HasPrefix(c.ETag, `"`) {
		c.ETag = "" // a weak one
	}
	if coding := response.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		_ = response.Body.Close()
		return nil, fault.New(fault.Unavailable, "origin %s sent object %s with the content coding %s, although only "+
			"identity was accepted: look for a proxy that compresses", r.Origin.Host(), o.OID, Printable(coding))
	}
	switch {
	case response.Status == http.StatusPartialContent && offset > 0:
		sent := response.Header.Get("Content-Range")
		if sent == fmt.Sprintf("bytes %d-%d/%d", offset, o.Size-1, o.Size) {
			c.Offset = offset
			return c, nil
		}
		err = fmt.Errorf("%w: it has the range %s", ErrWrongObject, Printable(sent))
	case response.Status != http.StatusOK:
		err = fmt.Errorf("status %d", response.Status)
	case response.Length >= 0 && response.Length != o.Size:
		err = fmt.Errorf("%w: it has %d bytes instead of %d", ErrWrongObject, response.Length, o.Size)
	default:
		return c, nil
	}
	_ = response.Body.Close()
	return nil, fault.Wrap(fault.Unavailable, "origin "+r.Origin.Host()+" sent an invalid answer for object "+
		o.OID.String(), err)
}

// request returns the request of an action. The caller's credential is for the origin itself.
func (r LFSRepository) request(a *LFSAction, operation, method string) Request {
	q := Request{Operation: operation, Path: r.Path, URL: a.URL, Method: method, Header: a.Header.Clone(),
		Auth: r.Auth}
	if a.isOpen {
		q.Auth, q.Writes = node.Secret{}, true
	}
	return q
}

// Upload sends an object with the caller's credential, and has the server verify it. The answer is that of a Batch.
// body may still be read after an error. A body that ends early is Invalid.
func (r LFSRepository) Upload(ctx context.Context, a *LFSAnswer, o lfs.Object, body io.Reader) error {
	q := r.request(a.Action, OperationUpload, http.MethodPut)
	q.Writes, q.Body, q.Length = true, &exactReader{r: body, left: o.Size}, o.Size
	if q.Header.Get("Content-Type") == "" {
		q.Header.Set("Content-Type", "application/octet-stream")
	}
	response, err := r.Origin.Do(ctx, q)
	if err != nil {
		return r.explain(err)
	}
	if err := response.Body.Close(); err != nil || a.Verify == nil {
		return err
	}
	q = r.request(a.Verify, OperationAPI, http.MethodPost)
	q.Writes = true
	q.Header.Set("Accept", wire.MediaType)
	return r.exchange(ctx, q, wire.Object{OID: o.OID.String(), Size: o.Size}, nil)
}

// exactReader reads a number of bytes. An earlier end is an error.
type exactReader struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (e *exactReader) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	switch {
	case e.left == 0:
		err = nil
	case err == io.EOF:
		err = fault.Wrap(fault.Invalid, "the upload ended early", io.ErrUnexpectedEOF)
	}
	return n, err
}
