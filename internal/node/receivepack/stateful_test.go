package receivepack

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// In a stateful session the client keeps its stream open and waits. It still receives the report, for pushes that git
// accepts and for those that git aborts.
func TestStreamThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.clone()
	pack := packOf(t, c, c.ID("main"))
	id := c.ID("main").String()
	for _, test := range []struct{ name, request, says string }{
		{"push", commands(reports, zeros(c.ID("main"))+" "+id+" refs/tags/topic") + pack, "ok refs/tags/topic"},
		{"damaged", commands(reports, zeros(c.ID("main"))+" "+id+" refs/heads/other") + pack[:20] + strings.Repeat("?", 200),
			"ng refs/heads/other"},
		{"deletion", commands(reports, id+" "+zeros(c.ID("main"))+" refs/tags/topic"), "ok refs/tags/topic"},
		{"nothing", "0000", ""},
	} {
		out, in := io.Pipe()
		var reply recorder
		result := make(chan error, 1)
		go func() {
			_, err := w.server.Serve(context.Background(), w.target(), node.Session{Service: protocol.ReceivePack}, tester, out,
				&reply)
			result <- untold(err)
		}()
		if _, err := io.WriteString(in, test.request); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err != nil || !strings.Contains(reply.String(), test.says) {
			t.Errorf("%s: %v, %q", test.name, err, reply.String())
		}
		in.Close() // as the session does then
	}
	if got := w.refs(); got != "" {
		t.Errorf("at the end the refs are %s", got)
	}
	w.clean()
}
