package world

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestAwaitIndex waits for the index of a server whose metrics change from one text to the next.
func TestAwaitIndex(t *testing.T) {
	t.Parallel()
	repositories := func(fresh, waiting, failed int) string {
		text := "packhorse_up 1\n"
		for state, n := range map[string]int{"fresh": fresh, "waiting": waiting, "failed": failed} {
			text += fmt.Sprintf("packhorse_search_repositories{state=%q} %d\n", state, n)
		}
		return text
	}
	for name, c := range map[string]struct {
		pages []string // the last one stays; "": the server ends
		want  string   // in the error; "": there is none
	}{
		"made":      {[]string{repositories(0, 0, 0), repositories(0, 1, 0), repositories(1, 0, 0)}, ""},
		"no search": {[]string{"packhorse_up 1\n"}, ""},
		"failed":    {[]string{repositories(0, 1, 0), repositories(0, 1, 1)}, "cannot make its search index"},
		"ended":     {[]string{repositories(0, 1, 0), ""}, "server ended"},
		"never":     {[]string{repositories(0, 1, 0)}, context.DeadlineExceeded.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &Process{Ended: make(chan struct{})}
			var asked int // one request at a time
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				page := c.pages[min(asked, len(c.pages)-1)]
				if asked++; page == "" {
					close(s.Ended)
					w.WriteHeader(http.StatusBadGateway)
					return
				}
				io.WriteString(w, page) //nolint:errcheck // who asked sees it
			}))
			defer server.Close()
			s.Ops = server.URL
			limit := time.Minute
			if name == "never" {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err := s.AwaitIndex(ctx)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || asked < len(c.pages) {
				t.Errorf("after %d answers: %v", asked, err)
			}
		})
	}
}
