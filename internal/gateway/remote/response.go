package remote

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// response is a response on its way from the node to the client.
type response struct {
	node     *Node
	pool     *sidechannel.Pool // of the link that the call uses; nil: bulk data is part of the call
	ctx      context.Context   // of the client's request
	callCtx  context.Context   // of the call, which may continue for disconnectDelay after the client has disconnected
	hangUp   func()            // cancels the call
	complete *atomic.Bool      // the client has the whole response, and may disconnect
	call     connect.StreamingClientConn
	request  *requestStream      // nil: the request was sent
	w        node.ResponseWriter // nil: the response has no data
	part     *part
	outcome  node.Outcome
	updates  []node.RefUpdate // of a push, received so far

	length    int64
	hasLength bool
	sent      int64
	bulk      bool // the data path has been named
	cutOff    bool // the call ended without an error from the node
}

// run forwards parts until the last one. Its error is nil only after a complete response.
func (r *response) run() error {
	for {
		err := r.receive()
		if errors.Is(err, io.EOF) {
			return r.invalid("the call ended before the end of the response")
		} else if err != nil {
			r.outcome = r.node.outcomeOfError(r.ctx, err)
			return r.failed(err)
		}
		if r.part.other == nil {
			if err := r.write(r.part.data); err != nil {
				return err
			}
			continue
		}
		switch p := r.part.other.GetPart().(type) {
		case *internalv1.SessionResponse_Data:
			err = r.write(r.part.data)
		case *internalv1.SessionResponse_Length:
			if r.hasLength || r.sent > 0 || p.Length > 1<<62 || r.w == nil {
				return r.invalid("unexpected length")
			}
			r.hasLength, r.length = true, int64(p.Length)
		case *internalv1.SessionResponse_DataPathRequest:
			if r.request != nil && r.request.push {
				err = r.request.start()
				break
			}
			var end *internalv1.End
			if end, err = r.startBulk(p.DataPathRequest.GetCold()); end != nil {
				return r.end(end)
			}
		case *internalv1.SessionResponse_Staleness:
			setStaleness(r.w, p.Staleness.AsDuration())
		case *internalv1.SessionResponse_Archive:
			err = r.setArchive(p.Archive)
		case *internalv1.SessionResponse_Updates:
			err = r.addUpdates(p.Updates)
		case *internalv1.SessionResponse_End:
			return r.end(p.End)
		default:
			return r.invalid("unknown part")
		}
		if err != nil {
			return err
		}
	}
}

// setStaleness passes the age of a mirror's state on to the client.
func setStaleness(w node.ResponseWriter, age time.Duration) {
	if s, ok := w.(node.StalenessWriter); ok {
		s.SetStaleness(age)
	}
}

// maxUpdates is the maximum number of ref updates that a node may report. A node does not allow more
// in a request of the maximum size.
const maxUpdates = 1 << 20

// addUpdates adds results of a push's ref updates.
func (r *response) addUpdates(m *internalv1.RefUpdates) error {
	if len(r.updates)+len(m.GetUpdates()) > maxUpdates || r.request == nil || !r.request.push {
		return r.invalid("too many ref updates")
	}
	for _, u := range m.GetUpdates() {
		before, okBefore := objectID(u.GetOldId())
		after, okAfter := objectID(u.GetNewId())
		if !okBefore || !okAfter || len(u.GetRef()) > 64<<10 || len(u.GetResult()) > 1<<10 {
			return r.invalid("invalid ref update")
		}
		r.updates = append(r.updates, node.RefUpdate{Ref: u.GetRef(), Old: before, New: after, Result: u.GetResult()})
	}
	return nil
}

func objectID(raw []byte) (git.ObjectID, bool) {
	if len(raw) != git.SHA1.Size() && len(raw) != git.SHA256.Size() {
		return git.ObjectID{}, false
	}
	return git.RawObjectID(raw), true
}

// receive waits for the next part.
func (r *response) receive() error {
	r.part.data, r.part.other = nil, nil
	return r.call.Receive(r.part)
}

// invalid returns the error of a node that violates the protocol.
func (r *response) invalid(problem string) error { return r.node.invalidResponse(errors.New(problem)) }

// begin announces the length before the first byte.
func (r *response) begin() {
	if r.sent == 0 && r.hasLength {
		r.w.SetLength(r.length)
	}
}

// write sends bytes of the call to the client. It flushes after a part that is not full, because the node may wait.
func (r *response) write(p []byte) error {
	if r.w == nil {
		return r.invalid("unexpected data")
	}
	if err := r.request.wait(); err != nil {
		return err
	}
	r.begin()
	n, err := r.w.Write(p)
	r.count(int64(n))
	if err == nil && (r.bulk || r.request != nil) && len(p) < fullPart {
		err = r.w.Flush()
	}
	if err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// count counts n bytes that were sent to the client.
func (r *response) count(n int64) {
	r.sent += n
	if r.hasLength && r.sent == r.length {
		r.complete.Store(true)
	}
}

// fullPart is the length of a full part in bytes.
const fullPart = 128 << 10

// startBulk admits a long response, and names the data path to the node. From a side channel it copies the response,
// and returns the last part of the call.
func (r *response) startBulk(cold bool) (*internalv1.End, error) {
	if r.bulk || r.sent > 0 && (r.request == nil || !r.request.stateful) {
		return nil, r.invalid("unexpected request for a data path")
	}
	if err := r.w.StartBulk(cold); err != nil {
		return nil, err
	}
	r.bulk = true
	if r.pool != nil {
		return r.copyFromChannel()
	}
	return nil, r.sendPath(&internalv1.DataPath{Path: &internalv1.DataPath_InBand{InBand: &internalv1.InBand{}}})
}

// sendPath names the data path.
func (r *response) sendPath(path *internalv1.DataPath) error {
	if r.request != nil {
		r.request.mu.Lock()
		defer r.request.mu.Unlock()
	}
	message := &internalv1.SessionRequest{Part: &internalv1.SessionRequest_DataPath{DataPath: path}}
	if err := r.call.Send(message); err != nil && !errors.Is(err, io.EOF) {
		// after io.EOF the node's response has the reason
		return r.node.failed(r.ctx, err)
	}
	return nil
}

// result takes the outcome from the last part, and returns its error.
func (r *response) result(end *internalv1.End) error {
	var err error
	if r.outcome, err = r.node.outcomeOf(r.ctx, end.GetOutcome()); err != nil {
		return err
	}
	if r.request != nil {
		r.request.objectBytes = end.GetObjectBytes()
	}
	err = faultrpc.Fault(end.GetFault())
	if err != nil && end.GetFaultReported() {
		return &node.ReportedError{Err: err}
	}
	return err
}

// end processes the last part.
func (r *response) end(end *internalv1.End) error {
	result := r.result(end)
	if result != nil {
		if _, reported := errors.AsType[*node.ReportedError](result); !reported {
			return result
		}
	} else if r.hasLength && r.sent != r.length {
		return r.invalid("another length than announced")
	} else {
		r.begin()
	}
	if err := r.receive(); !errors.Is(err, io.EOF) && r.ctx.Err() == nil {
		return r.invalid("a part after the end")
	}
	return result
}

// outcomeOf converts an outcome; nil gives the zero value. Call it once, because it adds the resources that git used on
// the node to the request of the context.
func (n *Node) outcomeOf(ctx context.Context, m *internalv1.Outcome) (o node.Outcome, err error) {
	inflight.From(ctx).AddUsageHeader(m.GetGitUsage())
	if len(m.GetJson()) == 0 {
		return o, nil
	}
	if err = o.Decode(m.GetJson()); err != nil {
		err = n.invalidResponse(err)
	}
	return o, err
}

// outcomeOfError returns the outcome of a session that ended with an error of the call; the zero value if there is
// none.
func (n *Node) outcomeOfError(ctx context.Context, err error) node.Outcome {
	m, _ := faultrpc.Detail[*internalv1.Outcome](err)
	o, _ := n.outcomeOf(ctx, m) // the error of the call is the one to report
	return o
}
