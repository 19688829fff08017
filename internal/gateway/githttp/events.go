package githttp

import (
	"net/http"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	maxEvents        = 1000
	eventPoll        = time.Second
	streamTime       = 10 * time.Minute // the length of a stream of events
	maxStreams       = 100              // half of them of anonymous callers
	maxCallerStreams = 10
	tooManyStreams   = "too many streams of events: a caller has at most 10, and all together 100; end one of them or " +
		"try again"
)

// streamEvents sends events as JSON lines, for some minutes. The last line has the position to continue with, or the
// error. The caller is identified again before each page, so that a stream ends with its credential.
func (a *apiRequest) streamEvents(asked *packhorsev1.EventServiceListRequest) {
	leave, err := a.handler.streams.enter(a.Caller())
	if err != nil {
		a.fail(err)
		return
	}
	defer leave()
	a.Publish()
	asked.Limit = maxEvents
	for end := time.Now().Add(streamTime); ; {
		page, err := a.currentEvents(asked)
		for i := 0; err == nil && i < len(page.Events); i++ {
			err = a.stream(typeLines, rest.Encode(rest.NewObject(page.Events[i], false)))
		}
		if err != nil {
			a.endStream(err, typeLines, rest.Encode(rest.Object{"error": rest.NewError(err)}))
			return
		}
		isLast := page.Next == asked.After
		if asked.After = page.Next; !isLast {
			continue
		}
		var last []byte
		isOver := time.Now().After(end) || a.handler.streams.ending.Err() != nil
		if isOver {
			last = rest.Encode(rest.Object{"next": page.Next})
		}
		if err := a.stream(typeLines, last); err != nil || http.NewResponseController(a.w).Flush() != nil || isOver ||
			retry.Sleep(a.Ctx, eventPoll) != nil {
			return
		}
	}
}

// currentEvents identifies the caller again, and returns a page of the events that it may see now.
func (a *apiRequest) currentEvents(asked *packhorsev1.EventServiceListRequest) (
	page *packhorsev1.EventServiceListResponse, err error) {
	if a.Auth != nil {
		if a.ID, err = a.Auth.HTTP(a.r); err != nil {
			return nil, err
		}
	}
	if _, err = a.handler.Access.For(a.Ctx, a.ID); err != nil && !fault.Is(err, fault.Denied) {
		return nil, err
	}
	isAdmin := err == nil
	if a.ID.Anonymous() { // an error if it may read nothing
		if _, err = a.List(&packhorsev1.ListRequest{PageSize: 1}, ""); err != nil {
			return nil, err
		}
	}
	return a.Events(asked, isAdmin)
}
