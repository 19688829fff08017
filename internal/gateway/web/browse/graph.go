package browse

import (
	"fmt"
	"slices"
	"strings"

	g "maragu.dev/gomponents"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	maxLanes   = 16 // of a drawing; more are drawn in the last one
	maxForks   = 32 // parents of a commit
	laneWidth  = 12
	rowHeight  = 29 // as in style.css
	graphShade = 6  // colours of lanes in style.css
)

// graph is the drawing of a list of commits: one column, a lane, for each line of history.
type graph struct {
	rows  []graphRow
	width int // lanes of the widest row
}

// graphRow is the drawing beside one commit.
type graphRow struct {
	at    int   // lane of the commit
	lines []int // lanes that pass by
	ends  []int // lanes that lead into the commit from above
	forks []int // lanes to the parents below
}

// addLane adds a lane as it is drawn, once.
func addLane(lanes []int, lane int) []int {
	if lane = min(lane, maxLanes-1); slices.Contains(lanes, lane) {
		return lanes
	}
	return append(lanes, lane)
}

// newGraph draws a list.
func newGraph(list []*packhorsev1.Commit) *graph {
	gr := &graph{width: 1}
	var lanes []string // the commit that each lane leads to; "": free
	for _, c := range list {
		row := graphRow{at: -1}
		next := slices.Clone(lanes)
		for i, id := range lanes {
			switch {
			case id == c.GetOid():
				if row.at < 0 {
					row.at = i
				}
				row.ends = addLane(row.ends, i)
				next[i] = ""
			case id != "":
				row.lines = addLane(row.lines, i)
			}
		}
		place := func(id string) int {
			if i := slices.Index(next, id); i >= 0 {
				return i
			}
			i := slices.Index(next, "")
			if i < 0 {
				i = len(next)
				next = append(next, "")
			}
			next[i] = id
			return i
		}
		if row.at < 0 {
			if row.at = slices.Index(next, ""); row.at < 0 {
				row.at = len(next)
				next = append(next, "")
			}
		}
		parents := c.GetParents()
		for i, parent := range parents[:min(len(parents), maxForks)] {
			if i == 0 && !slices.Contains(next, parent) {
				next[row.at] = parent
				row.forks = addLane(row.forks, row.at)
				continue
			}
			row.forks = addLane(row.forks, place(parent))
		}
		for len(next) > 0 && next[len(next)-1] == "" {
			next = next[:len(next)-1]
		}
		gr.width = max(gr.width, len(next), len(lanes), row.at+1)
		gr.rows = append(gr.rows, row)
		lanes = next
	}
	gr.width = min(gr.width, maxLanes)
	return gr
}

// row returns the drawing beside a commit.
func (gr *graph) row(i int) g.Node {
	row := gr.rows[i]
	var b strings.Builder
	fmt.Fprintf(&b, `<svg width="%d" height="%d" aria-hidden="true">`, gr.width*laneWidth, rowHeight)
	line := func(from, y1, to, y2, lane int) {
		x1, x2 := laneAt(from), laneAt(to)
		fmt.Fprintf(&b, `<path class="l%d" d="M%d %dC%d %d %d %d %d %d"/>`, lane%graphShade, x1, y1, x1, (y1+y2)/2, x2,
			(y1+y2)/2, x2, y2)
	}
	for _, lane := range row.lines {
		line(lane, 0, lane, rowHeight, lane)
	}
	for _, lane := range row.ends {
		line(lane, 0, row.at, rowHeight/2, lane)
	}
	for _, lane := range row.forks {
		line(row.at, rowHeight/2, lane, rowHeight, lane)
	}
	fmt.Fprintf(&b, `<circle class="l%d" cx="%d" cy="%d" r="4"/></svg>`, row.at%graphShade, laneAt(row.at), rowHeight/2)
	return g.Raw(b.String())
}

// laneAt returns the middle of a lane in pixels.
func laneAt(lane int) int { return min(lane, maxLanes-1)*laneWidth + laneWidth/2 }
