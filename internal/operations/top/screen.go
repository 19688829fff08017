package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// ScreenOptions configure Show.
type ScreenOptions struct {
	In, Out  *os.File // a terminal
	Source   func(context.Context) (*State, error)
	From     string // source of the States, for the user
	Sort     Sort
	Interval time.Duration
}

const (
	sourceLimit = 5 * time.Second        // for one State
	keyPause    = 100 * time.Millisecond // maximum time until a new State, size or the end of the context is noticed
)

// Control sequences.
const (
	enter    = "\x1b[?1049h\x1b[?25l" // the second screen, without a cursor
	leave    = "\x1b[?25h\x1b[?1049l"
	home     = "\x1b[H"
	endLine  = "\x1b[K\r\n"
	endFrame = "\x1b[J" // clears the rest of the screen
)

// Show displays first and then further States, once a second, until the user quits or ctx ends. Neither is an error.
func Show(ctx context.Context, first *State, o ScreenOptions) error {
	before, err := term.MakeRaw(int(o.In.Fd()))
	if err != nil {
		return fmt.Errorf("set the terminal to single keys: %w", err)
	}
	defer func() { _ = term.Restore(int(o.In.Fd()), before) }()
	if _, err := o.Out.WriteString(enter); err != nil {
		return err
	}
	defer func() { _, _ = o.Out.WriteString(leave) }()

	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan answer)
	asked := make(chan struct{})
	go func() { // a slow source does not delay keys
		defer close(asked)
		o.ask(ctx, answers)
	}()
	defer func() { cancel(); <-asked }()

	s := &screen{now: first, view: View{Sort: o.Sort, Bold: true, From: o.From}}
	var drawn string
	for ctx.Err() == nil {
		s.view.Width, s.view.Height = leastWidth, 24
		if width, height, err := term.GetSize(int(o.Out.Fd())); err == nil && width > 0 {
			s.view.Width, s.view.Height = width, max(height, 1)
		}
		if frame := Frame(s.now, s.before, s.view); frame != drawn {
			drawn = frame
			if _, err := o.Out.WriteString(home + strings.ReplaceAll(frame, "\n", endLine) + endFrame); err != nil {
				return err
			}
		}
		keys, err := read(o.In)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if s.key(key) {
				return nil
			}
		}
		select {
		case a := <-answers:
			s.received(a)
		default:
		}
	}
	return nil
}

// answer is an answer of the source.
type answer struct {
	state *State
	err   error
}

// ask requests a State after each pause.
func (o ScreenOptions) ask(ctx context.Context, answers chan<- answer) {
	for {
		select {
		case <-time.After(o.Interval):
		case <-ctx.Done():
			return
		}
		limited, cancel := context.WithTimeout(ctx, sourceLimit)
		state, err := o.Source(limited)
		cancel()
		select {
		case answers <- answer{state, err}:
		case <-ctx.Done():
			return
		}
	}
}

// read returns the keys that the user has pressed, after at most keyPause.
func read(in *os.File) (keys []string, err error) {
	ready := []unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	if n, err := unix.Poll(ready, int(keyPause.Milliseconds())); n == 0 || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	buf := make([]byte, 256)
	n, err := in.Read(buf)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	if buf[n-1] == '\x1b' && n < len(buf) { // the rest of a key may follow
		if more, _ := unix.Poll(ready, int(keyPause.Milliseconds())); more > 0 {
			rest, err := in.Read(buf[n:])
			if err != nil {
				return nil, fmt.Errorf("read keys: %w", err)
			}
			n += rest
		}
	}
	return split(string(buf[:n])), nil
}

// split divides what a terminal sent into keys. The name of most keys is their text.
func split(text string) (keys []string) {
	for text != "" {
		n := 1
		if strings.HasPrefix(text, "\x1b[") || strings.HasPrefix(text, "\x1bO") {
			n = len(text)
			if i := strings.IndexFunc(text[2:], func(r rune) bool { return r >= '@' && r <= '~' }); i >= 0 {
				n = 2 + i + 1
			}
		}
		keys, text = append(keys, strings.Replace(text[:n], "\x1bO", "\x1b[", 1)), text[n:]
	}
	return keys
}

// screen is what the user sees and changes by keys.
type screen struct {
	now, before *State
	view        View
}

// received shows a State, unless the display is paused.
func (s *screen) received(a answer) {
	s.view.Error = ""
	if a.err != nil {
		s.view.Error = a.err.Error()
	} else if !s.view.Paused {
		s.before, s.now = s.now, a.state
	}
}

// key performs the action of a key. It reports whether the user quits.
func (s *screen) key(key string) (quit bool) {
	v := &s.view
	page := max(1, v.Height/2)
	switch key {
	case "q", "\x1b", "\x03", "\x04":
		return true
	case " ", "p":
		v.Paused = !v.Paused
	case "s":
		v.Sort = after(v.Sort, 1)
	case "S":
		v.Sort = after(v.Sort, -1)
	case "r":
		v.Reversed = !v.Reversed
	case "\t":
		v.Page, v.Offset = (v.Page+1)%pages, 0
	case "\x1b[Z": // shift and tab
		v.Page, v.Offset = (v.Page+pages-1)%pages, 0
	case "1", "2", "3", "4":
		v.Page, v.Offset = Page(key[0]-'1'), 0
	case "\x1b[B", "j": // down
		v.Offset++
	case "\x1b[A", "k": // up
		v.Offset--
	case "\x1b[6~": // page down
		v.Offset += page
	case "\x1b[5~": // page up
		v.Offset -= page
	case "\x1b[H", "\x1b[1~", "g": // home
		v.Offset = 0
	case "?", "h":
		v.Help = !v.Help
	}
	_, rows := (&frame{View: s.view, now: s.now}).rows()
	v.Offset = min(max(v.Offset, 0), max(0, len(rows)-1))
	return false
}

// after returns the order that is n steps after another.
func after(by Sort, n int) Sort {
	i := max(0, slices.Index(Sorts, by)) + n + len(Sorts)
	return Sorts[i%len(Sorts)]
}
