package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
)

// operation is what a request asks for; it is a metric label.
type operation string

const (
	opAdvertise operation = "info_refs"
	opLsRefs    operation = "ls_refs"
	opFetch     operation = "fetch"
	opInfo      operation = "object_info"
	opBundles   operation = "bundle_uri"
	opPush      operation = "push"
	opWait      operation = "wait"
	opResolve   operation = "resolve"
	opSearch    operation = "search"
	opPage      operation = "page"
	opApp       operation = "app"
	opOther     operation = "other"
)

// opOf is the operation of a fetch session's request, once it is known.
func opOf(command protocol.Command) operation {
	switch command {
	case protocol.CommandLsRefs:
		return opLsRefs
	case protocol.CommandObjectInfo:
		return opInfo
	case protocol.CommandBundleURI:
		return opBundles
	}
	return opFetch
}

// call is one request for a node, whichever way it came in, and what came of it.
type call struct {
	*Options
	ctx     context.Context // ends when the client goes away
	running *inflight.Request
	span    *inflight.Span // nil: it is not traced
	start   time.Time

	op        operation
	id        auth.Identity
	repo      git.RepoPath
	let       bool     // allow let it through; no node is asked before
	push      bool     // it is for the one node of the route that takes pushes
	hidden    bool     // the caller may not know whether the repository exists
	reachable bool     // see node.Session
	node      string   // that was asked last; "" for none
	failed    []string // nodes that were asked before it
	outcome   node.Outcome
	served    *Served    // by the application; nil: it was not asked
	bytes     bulk.Tally // of the answer
	err       error
}

// answer is where a node's reply goes, as relay sees it.
type answer interface {
	// started tells whether anything may have been sent to the client.
	started() bool
	// again takes back what a node announced, and goes back to the request's first byte for another one; false: that cannot be.
	again() bool
	// hindered tells that what failed was here or at the client, and not the node.
	hindered() bool
}

// know tells the board what is known of the request.
func (c *call) know() { c.running.Is(string(c.op), c.repo.String(), c.id.Name) }

// sent counts n bytes of the answer that went through user space.
func (c *call) sent(n int) {
	c.bytes.Add(int64(n))
	c.running.Sent(int64(n))
}

// sendFrom sends what src has, by the kernel if nothing stands between here and the socket, and counts it.
func (c *call) sendFrom(to io.Writer, src io.Reader) (int64, error) {
	live := bulk.CountTo(src, c.running)
	n, err := io.Copy(to, src)
	c.bytes.AddFrom(src, n)
	if !live {
		c.running.Sent(n)
	}
	return n, err
}

// count counts the request, and gives its result as a label.
func (c *call) count() (result string, took time.Duration) {
	c.know()
	took = time.Since(c.start)
	result = "ok"
	if c.err != nil {
		result = c.errorKind()
	}
	c.Metrics.countRequest(c.ctx, c.op, result, took)
	if c.served != nil {
		c.judgeServed(result)
	} else {
		c.judge(c.op, result, took, &c.outcome)
	}
	c.Metrics.countStages(c.outcome)
	c.Metrics.served.Add(float64(c.bytes.Sent))
	c.Pump.Count(&c.bytes)
	return result, took
}

// endSpan ends the request's part of its trace.
func (c *call) endSpan(result, transport string) {
	if c.span == nil {
		return
	}
	c.span.Named(string(c.op))
	for key, text := range map[string]string{
		"packhorse.result": result, "packhorse.transport": transport, "packhorse.repository": auth.Redact(c.repo.String()), "packhorse.node": c.node,
		"enduser.id": c.id.Name,
	} {
		c.span.Text(key, text)
	}
	c.span.Number("packhorse.bytes", c.bytes.Sent)
	failure := ""
	if result != "ok" {
		failure = result
	}
	c.span.End(failure)
}

// told tells whether a search failed because what searches says of itself that it cannot now: a refusal, whose reason is in the log of who gave it.
// Where something broke there is a cause.
func (c *call) told() bool {
	return (c.op == opSearch || c.op == opPage) && errors.Unwrap(c.err) == nil
}

// level is that of the request's line. A push that failed is worth a warning, whoever is to blame: somebody's work is not on the server.
func (c *call) level(result string) slog.Level {
	push := c.op == opPush
	if c.served != nil && c.served.Err == nil && c.err != nil { // the application's error, which is in its own log
		return slog.LevelWarn
	}
	switch result {
	case "ok":
		return slog.LevelInfo
	case fault.Internal.String(), fault.Corrupt.String():
		return slog.LevelError
	case fault.Unavailable.String(): // it passes, as the end of the process does
		switch {
		case push && c.outcome.Reason != "": // a full disk does not
			return slog.LevelError
		case !c.told():
			return slog.LevelWarn
		}
	case fault.Unauthenticated.String(): // a step of HTTP's authentication
		return slog.LevelInfo
	}
	if push {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// log writes the request's line, with what its transport adds by more, and the lines that list what a push did.
func (c *call) log(result string, took time.Duration, more func([]slog.Attr) []slog.Attr) {
	level := c.level(result)
	if !c.Log.Enabled(c.ctx, level) {
		return
	}
	kept := attributeLists.Get().(*[]slog.Attr)
	a := (*kept)[:0]
	if id := c.running.ID(); id != "" {
		a = append(a, slog.String("request", id))
	}
	if c.span != nil {
		if id := inflight.TraceID(c.ctx); id != "" {
			a = append(a, slog.String("trace", id))
		}
	}
	a = append(a,
		slog.String("operation", string(c.op)), slog.String("result", result), slog.String("repository", auth.Redact(c.repo.String())),
		milliseconds("ms", took))
	a = c.attributes(more(a))
	// As LogAttrs would, but for the place in the code that the line comes from, which nobody asks for.
	r := slog.NewRecord(time.Now(), level, "request", 0)
	r.AddAttrs(slog.Attr{Value: slog.GroupValue(a...)}) // a group without a name is as if its attributes stood there, and copies none of them
	_ = c.Log.Handler().Handle(c.ctx, r)
	node.LogUpdates(c.ctx, c.Log, level, c.outcome.Updates,
		slog.String("request", c.running.ID()), slog.String("repository", auth.Redact(c.repo.String())), slog.String("user", c.id.Name))
	clear(a)
	*kept = a
	attributeLists.Put(kept)
}

// attributeLists are of attributes of lines that are written. Handlers keep none of them.
var attributeLists = sync.Pool{New: func() any {
	const usual = 24 // as many as the line of a small request has, and some more
	list := make([]slog.Attr, 0, usual)
	return &list
}}
