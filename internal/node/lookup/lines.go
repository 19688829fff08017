package lookup

import (
	"bytes"
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// lineCount counts the lines that a minimal difference deletes from a and adds to make b. ok is false if that is too
// much work. A line includes its newline, so a last line without newline differs from one with it.
func (c *operation) lineCount(a, b []byte) (added, deleted int64, ok bool, err error) {
	a, b = trimCommon(a, b)
	inA, inB := lines(a), lines(b)
	switch {
	case inA == 0 || inB == 0:
		return int64(inB), int64(inA), true, nil
	case inA > c.bounds.diffLines || inB > c.bounds.diffLines:
		return 0, 0, false, nil
	}
	memory := 64 * int64(inA+inB) // of the numbers and their table
	if err := c.hold(memory); err != nil {
		return 0, 0, false, err
	}
	defer c.drop(memory)
	x, y := number(a, b, inA, inB)
	added, deleted = int64(inB-len(y)), int64(inA-len(x))
	distance, ok, err := editDistance(c.ctx, x, y, c.bounds.diffWork)
	if !ok || err != nil {
		return 0, 0, false, err
	}
	surplus := len(y) - len(x)
	return added + int64((distance+surplus)/2), deleted + int64((distance-surplus)/2), true, nil
}

// lines counts lines. The last one may lack a newline.
func lines(b []byte) int {
	n := bytes.Count(b, []byte{'\n'})
	if len(b) > 0 && b[len(b)-1] != '\n' {
		n++
	}
	return n
}

// trimCommon removes the lines with which both begin, and those with which both end.
func trimCommon(a, b []byte) ([]byte, []byte) {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if n == len(a) && n == len(b) {
		return nil, nil
	}
	n = bytes.LastIndexByte(a[:n], '\n') + 1
	a, b = a[n:], b[n:]
	n = 0
	for n < len(a) && n < len(b) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	// keep the rest of the line in which the common end begins
	if first := bytes.IndexByte(a[len(a)-n:], '\n'); first >= 0 {
		n -= first + 1
		a, b = a[:len(a)-n], b[:len(b)-n]
	}
	return a, b
}

// number assigns a number to each different line, and omits the lines that only one side has.
func number(a, b []byte, inA, inB int) (x, y []int32) {
	numbers := make(map[string]int32)
	x, y = make([]int32, 0, inA), make([]int32, 0, inB)
	for rest, text := string(a), ""; rest != ""; {
		text, rest = cutLine(rest)
		n, ok := numbers[text]
		if !ok {
			n = int32(len(numbers))
			numbers[text] = n
		}
		x = append(x, n)
	}
	inBoth := make([]bool, len(numbers))
	for rest, text := b, []byte(nil); len(rest) > 0; {
		text, rest = cutLine(rest)
		if n, ok := numbers[string(text)]; ok {
			inBoth[n] = true
			y = append(y, n)
		}
	}
	kept := x[:0]
	for _, n := range x {
		if inBoth[n] {
			kept = append(kept, n)
		}
	}
	return kept, y
}

func cutLine[T string | []byte](s T) (line, rest T) {
	for i := range len(s) {
		if s[i] == '\n' {
			return s[:i+1], s[i+1:]
		}
	}
	return s, s[len(s):]
}

// editDistance returns the minimum number of insertions and deletions that turn a into b. It is the greedy algorithm of
// Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), which needs one row for the distance. If it takes
// more than limit steps, ok is false.
func editDistance(ctx context.Context, a, b []int32, limit int) (distance int, ok bool, err error) {
	n, m := len(a), len(b)
	furthest := make([]int32, 2*(n+m)+3) // by diagonal x-y: the highest reached x
	at := n + m + 1
	work := 0
	for d := 0; d <= n+m; d++ {
		if work += d; work > limit {
			return 0, false, nil
		}
		if d%64 == 0 && ctx.Err() != nil {
			return 0, false, ctx.Err()
		}
		for k := -min(d, 2*m-d); k <= min(d, 2*n-d); k += 2 { // without diagonals beyond the ends
			var x int
			if k == -d || k != d && furthest[at+k-1] < furthest[at+k+1] {
				x = int(furthest[at+k+1])
			} else {
				x = int(furthest[at+k-1]) + 1
			}
			y, from := x-k, x
			for x < n && y < m && a[x] == b[y] {
				x++
				y++
			}
			work += x - from
			furthest[at+k] = int32(x)
			if x >= n && y >= m {
				return d, true, nil
			}
		}
	}
	return 0, false, fault.New(fault.Internal, "comparing lines does not end")
}
