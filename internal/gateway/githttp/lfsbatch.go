package githttp

import (
	"cmp"
	"net/url"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
)

const (
	// longBatch is the number of objects above which a response counts as long.
	longBatch = 1000
	// batchMemory is the memory of an object of a batch in bytes: with its state, in the gateway and in the node.
	batchMemory = 128
	// batchBuffer is the size in bytes of the pieces in which a response is sent.
	batchBuffer = 32 << 10
)

// lfsBatch answers a batch request (docs/api/batch.md): which objects can be transferred, and how.
func (q *request) lfsBatch() {
	q.Op = gateway.LFSBatch
	if !q.isLFSDocument() || !q.mayLFS(auth.Read) {
		return
	}
	body, err := q.readBody()
	if err != nil {
		q.fail(err)
		return
	}
	defer body.Close()
	q.respond(wire.MediaType, &sink{q: q}, body, func(response *gateway.Response) {
		q.Err = q.answerBatch(body, response)
	})
}

// answerBatch reads a batch request, which can be long, asks a node and writes the response.
func (q *request) answerBatch(body *gateway.Body, response *gateway.Response) error {
	asked, objects, err := wire.ReadBatch(body)
	if err != nil {
		return err
	}
	upload := asked.Operation == wire.Upload
	switch {
	case !upload && asked.Operation != wire.Download:
		return fault.New(fault.Invalid, "operation %.40q is not upload or download", asked.Operation)
	case len(nameOf(asked.Ref)) > maxRef:
		return fault.New(fault.Invalid, "the name of the ref has more than %d bytes", maxRef)
	case asked.HashAlgo != "" && asked.HashAlgo != wire.SHA256:
		return errHash
	case q.LFS.URL == nil && cmp.Or(q.from.Host, q.r.Host) == "":
		return fault.New(fault.Invalid, "the request has no Host header")
	}
	if upload {
		if err := q.Authorize(auth.Write); err != nil {
			return err
		}
	}
	if err := response.ReserveMemory(int64(len(objects)) * batchMemory); err != nil {
		return err
	}
	states := q.LFSBatch(lfs.Batch{Upload: upload, Ref: nameOf(asked.Ref), Objects: objects}, response)
	if q.Err != nil {
		return q.Err
	}
	if len(objects) > longBatch {
		if err := response.StartBulk(false); err != nil {
			return err
		}
	}
	return q.writeBatch(response, &asked, objects, states)
}

// maxRef is the maximum length of the name of a ref in bytes.
const maxRef = 1024

// actionQuery returns the function that makes the queries of the URLs of actions: the ref of an upload, and a token
// for callers with a credential. expires is the lifetime of the token. Zero means no token.
func (q *request) actionQuery(op auth.Operation, ref string) (query func(action string) string, expires time.Duration) {
	var token func(string) string
	if authorization := q.r.Header.Get("Authorization"); q.Auth != nil && q.lfs.token == "" && !q.ID.Anonymous() {
		if token = q.LFS.Tokens.URLs(authorization, q.lfsRepo(), op); token != nil {
			expires = auth.LFSTokenLife
		}
	}
	return func(action string) string {
		v := url.Values{}
		if ref != "" && op == auth.Write && action != "verify" {
			v.Set(lfsRef, ref)
		}
		if token != nil {
			v.Set(lfsToken, token(action))
		}
		return v.Encode()
	}, expires
}

// writeBatch writes the response to a batch request. It sends it in pieces.
func (q *request) writeBatch(response *gateway.Response, asked *wire.BatchRequest, objects []lfs.Object,
	states []lfs.Status) error {
	w := wire.BatchWriter{Transfer: wire.Basic, Upload: asked.Operation == wire.Upload, Objects: q.lfsURL("objects"),
		Authorization: q.lfs.token, Expires: q.lfs.remaining, Status: lfsStatus}
	op := auth.Read
	if w.Upload {
		op = auth.Write
	}
	query, expires := q.actionQuery(op, nameOf(asked.Ref))
	w.Query, w.Expires = query, cmp.Or(w.Expires, expires)
	if w.Upload {
		w.Verify = q.lfsURL("objects/verify")
		if slices.Contains(asked.Transfers, tus) {
			w.Transfer = tus
		}
	}
	p := w.Begin(make([]byte, 0, batchBuffer))
	for i, object := range objects {
		if p = w.Append(p, object, &states[i]); len(p) > batchBuffer-1024 {
			if _, err := response.Write(p); err != nil {
				return err
			}
			p = p[:0]
		}
	}
	_, err := response.Write(w.End(p))
	return err
}
