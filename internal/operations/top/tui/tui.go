// Package tui displays States of package top on a terminal, as frames that are redrawn each second until the user
// quits. A frame is a pure function of a State and a View (Frame).
package tui

import (
	"context"
	"io"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/packhorse-git/packhorse/internal/operations/top"
)

// Options configure Run.
type Options struct {
	In       io.Reader // a terminal
	Out      io.Writer
	Environ  []string // of the terminal: TERM
	Source   func(context.Context) (*top.State, error)
	From     string // source of the States, for the user
	Sort     top.Sort
	Interval time.Duration
}

// sourceLimit is the time limit for a State.
const sourceLimit = 5 * time.Second

// Run displays first and then further States until the user quits or ctx ends. Neither is an error.
func Run(ctx context.Context, first *top.State, o Options) error {
	m := &model{ctx: ctx, options: o, now: first, view: View{Width: leastWidth, Height: 24, Sort: o.Sort, Bold: true,
		From: o.From}}
	options := []tea.ProgramOption{tea.WithInput(o.In), tea.WithOutput(o.Out), tea.WithoutSignalHandler()}
	if o.Environ != nil {
		options = append(options, tea.WithEnvironment(o.Environ))
	}
	p := tea.NewProgram(m, options...)
	// The end of ctx sends the key q. With tea.WithContext, the program would close the terminal while its reader of keys
	// still uses it.
	defer context.AfterFunc(ctx, p.Quit)()
	_, err := p.Run()
	return err
}

// model is bubbletea's model; only one goroutine uses it.
type model struct {
	ctx         context.Context
	options     Options
	now, before *top.State
	view        View
}

// received is an answer of the source; next requests one.
type (
	received struct {
		state *top.State
		err   error
	}
	next struct{}
)

func (m *model) Init() tea.Cmd { return m.later() }

// later requests the next answer after a pause.
func (m *model) later() tea.Cmd {
	return tea.Tick(m.options.Interval, func(time.Time) tea.Msg { return next{} })
}

func (m *model) ask() tea.Msg {
	ctx, cancel := context.WithTimeout(m.ctx, sourceLimit)
	defer cancel()
	state, err := m.options.Source(ctx)
	return received{state, err}
}

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case next:
		if m.view.Paused {
			return m, m.later()
		}
		return m, m.ask
	case received:
		m.view.Error = ""
		if msg.err != nil {
			m.view.Error = msg.err.Error()
		} else if !m.view.Paused {
			m.before, m.now = m.now, msg.state
		}
		return m, m.later()
	case tea.WindowSizeMsg:
		m.view.Width, m.view.Height = msg.Width, max(msg.Height, 1)
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

// key performs the action of a key.
func (m *model) key(key string) tea.Cmd {
	v := &m.view
	page := max(1, v.Height/2)
	switch key {
	case "q", "esc", "ctrl+c", "ctrl+d":
		return tea.Quit
	case "space", "p":
		v.Paused = !v.Paused
	case "s":
		v.Sort = after(v.Sort, 1)
	case "S", "shift+s":
		v.Sort = after(v.Sort, -1)
	case "r":
		v.Reversed = !v.Reversed
	case "tab":
		v.Page, v.Offset = (v.Page+1)%pages, 0
	case "shift+tab":
		v.Page, v.Offset = (v.Page+pages-1)%pages, 0
	case "1", "2", "3", "4":
		v.Page, v.Offset = Page(key[0]-'1'), 0
	case "down", "j":
		v.Offset++
	case "up", "k":
		v.Offset--
	case "pgdown":
		v.Offset += page
	case "pgup":
		v.Offset -= page
	case "home", "g":
		v.Offset = 0
	case "?", "h":
		v.Help = !v.Help
	}
	v.Offset = min(max(v.Offset, 0), max(0, m.length()-1))
	return nil
}

// length returns the number of rows of the page.
func (m *model) length() int {
	_, rows := (&frame{View: m.view, now: m.now}).rows()
	return len(rows)
}

// after returns the order that is n steps after another.
func after(by top.Sort, n int) top.Sort {
	i := max(0, slices.Index(top.Sorts, by)) + n + len(top.Sorts)
	return top.Sorts[i%len(top.Sorts)]
}

func (m *model) View() tea.View {
	v := tea.NewView(Frame(m.now, m.before, m.view))
	v.AltScreen = true
	return v
}
