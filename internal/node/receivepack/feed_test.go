package receivepack

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// TestFeedWithoutReader checks that the end of a request is known even if Git reads nothing.
func TestFeedWithoutReader(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	for _, test := range []struct {
		name   string
		body   io.Reader
		closes bool // Git has ended
		want   fault.Kind
	}{
		{"an empty body", strings.NewReader(""), false, 0},
		{"a body that breaks", iotest.ErrReader(broken), false, fault.Invalid},
		{"data with an error", iotest.DataErrReader(io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken))), true,
			fault.Invalid},
	} {
		f := newFeed(test.body)
		if test.closes {
			f.out.Close()
		}
		go f.run()
		select {
		case <-f.done:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the feed has not ended, want its end without a reader", test.name)
			f.out.Close()
			continue
		}
		if err := f.failed(); (err != nil) != (test.want != 0) || err != nil && !fault.Is(err, test.want) {
			t.Errorf("%s: failed() = %v, want an error of kind %v", test.name, err, test.want)
		}
	}
}
