package balance

import "math"

// classes are what a worker's time is told apart by: another worker was idle meanwhile and one piece of work ran at this one, or none was idle and 1, 2, 3 ...
// (by steps) ran.
const classes = len(steps) + 1

type (
	vector [classes]float64
	matrix [classes]vector
)

// speeds are how fast a piece of work goes on in each class, as a part of one of mean worth for a second. What gets done by n at once is n times that.
//
// They are the solution of one equation for each class, from sums over the work that ended, of which older work counts less. What a piece of work is worth is
// the sum, over the classes, of its time there times the speed. Where all is worth the same, each one's equation counts for a class by the part of the work
// that was done there, which makes the best of it. Where work differs, more than its route tells, that would be wrong: what is long meets other classes than what
// is short. Then what counts is in which class work ends: as often as speed and time there say, as if it could end at any moment. In between it is some of both.
type speeds struct {
	most int // the highest class in use

	weight float64 // of the work that ended last
	pieces float64 // sum of weights
	a      matrix  // a x speeds = b
	b      vector
	v      matrix  // by what the equations are off: sum of the squares
	time   vector  // in each class, in seconds, for what is of mean worth
	count  vector  // of what was done there, in pieces of work
	size   float64 // sums of what work was by its times and the speeds, and of the squares
	square float64
	differ float64 // squared deviation of that from what its route tells, as a moving mean

	speed   vector
	inverse matrix
}

const (
	remembered    = 512.0 // pieces of work, and so many for each worker; what is older counts for less than 37 %
	rememberEach  = 8.0
	leastCount    = 6     // pieces of work in a class, to know its speed
	leastGuard    = 2     // and to trust it when much waits: more than is left of a trial when the next is due
	differFrom    = 32.0  // pieces of work, before which it cannot be told how much they differ
	differBack    = 128.0 // and over how many that is
	differLittle  = 0.2
	differMost    = 25.0 // of one piece of work
	firmness      = 0.5  // pieces of work that say: as fast as with one less; for what is not known
	leastGain     = 0.8  // times as much gets done with one step more, at the least
	mostFaster    = 1.1  // times as fast does a piece of work go on with one step more, at the most
	heaviest      = 1e9
	idleTwice     = 2.0
	idleFirmness  = 0.1
	mostDeviation = 10.0
)

// add takes in a piece of work that ended in a class, with its time in each, by what its route tells it to be worth.
func (s *speeds) add(in *vector, worth float64, end, workers int) {
	n := s.most + 1
	total, size := 0.0, 0.0
	for i := range n {
		total += in[i]
		size += in[i] * s.speed[i]
	}
	if total <= 0 || worth <= 0 {
		return
	}
	if s.weight == 0 {
		s.weight, size = 1, worth
		for i := range s.speed {
			s.speed[i] = worth / total
		}
	}
	s.weight *= 1 + 1/(remembered+rememberEach*float64(workers))
	if s.weight > heaviest {
		s.scale(1 / s.weight)
	}
	w := s.weight
	s.pieces, s.size, s.square = s.pieces+w, s.size+w*size, s.square+w*size*size
	size /= worth
	if s.pieces > differFrom*w {
		s.differ += (min((1-size)*(1-size), differMost) - s.differ) / differBack
	}
	byEnd := min(max(s.differ-differLittle, 0), 1)
	var off vector
	for i := range n {
		time, ended := in[i]/worth, 0.0
		if i == end {
			ended = byEnd
		}
		part := (1 - byEnd) * time / size
		s.time[i] += w * time
		s.count[i] += w * (part*s.speed[i] + ended)
		s.b[i] += w * (part + ended)
		s.a[i][i] += w * byEnd * time
		for j := range n {
			s.a[i][j] += w * part * in[j] / worth
		}
		off[i] = part*(1-size) + ended - byEnd*time*s.speed[i]
	}
	for i := range n {
		for j := range n {
			s.v[i][j] += w * off[i] * off[j]
		}
	}
}

func (s *speeds) scale(by float64) {
	s.weight, s.pieces, s.size, s.square = s.weight*by, s.pieces*by, s.size*by, s.square*by
	for i := range s.a {
		s.keep(i, by)
		for j := range s.a {
			s.a[i][j] *= by
			s.v[i][j] *= by
		}
	}
}

func (s *speeds) keep(i int, part float64) {
	s.b[i], s.time[i], s.count[i] = s.b[i]*part, s.time[i]*part, s.count[i]*part
}

// forget has what is known of a class count for so many pieces of work at the most. As the speeds are, the equations hold as before.
func (s *speeds) forget(i int, count float64) {
	if s.count[i] <= count*s.weight {
		return
	}
	part := count * s.weight / s.count[i]
	for j := range s.most + 1 {
		if j != i {
			s.b[j] -= (1 - part) * s.a[j][i] * s.speed[i]
			s.a[j][i] *= part
			s.v[j][i] *= part
		}
		s.a[i][j] *= part
		s.v[i][j] *= part
	}
	s.keep(i, part)
}

// solve finds the speeds.
func (s *speeds) solve() {
	n := s.most + 1
	a, b := s.a, s.b
	for i := range n {
		near, firm := max(i-1, 0), firmness
		if i == 0 {
			near, firm = 1, firmness*idleFirmness
		}
		firm *= s.weight / (s.speed[near] * s.speed[near])
		a[i][i] += firm
		a[i][near] -= firm
	}
	inverse, ok := invert(&a, n)
	if !ok {
		return
	}
	var found vector
	for i := range n {
		for j := range n {
			found[i] += inverse[i][j] * b[j]
		}
	}
	s.inverse = inverse
	s.bound(&found)
}

// invert is by Gauss and Jordan.
func invert(a *matrix, n int) (inverse matrix, ok bool) {
	for i := range n {
		inverse[i][i] = 1
	}
	for i := range n {
		pivot := i
		for k := i; k < n; k++ {
			if math.Abs(a[k][i]) > math.Abs(a[pivot][i]) {
				pivot = k
			}
		}
		a[i], a[pivot], inverse[i], inverse[pivot] = a[pivot], a[i], inverse[pivot], inverse[i]
		f := 1 / a[i][i]
		if math.IsInf(f, 0) || math.IsNaN(f) {
			return inverse, false
		}
		for j := range n {
			a[i][j] *= f
			inverse[i][j] *= f
		}
		for k := range n {
			f := a[k][i]
			if k == i || f == 0 {
				continue
			}
			for j := range n {
				a[k][j] -= f * a[i][j]
				inverse[k][j] -= f * inverse[i][j]
			}
		}
	}
	return inverse, true
}

// bound keeps what was found to what can be, from the class on that is known best.
func (s *speeds) bound(x *vector) {
	n, best := s.most+1, 1
	for i := 2; i < n; i++ {
		if s.count[i] > s.count[best] {
			best = i
		}
	}
	if !(x[best] > 0) {
		x[best] = s.speed[best]
	}
	for i := best + 1; i < n; i++ {
		x[i] = min(max(x[i], x[i-1]*leastGain/stepUp(i-2)), x[i-1]*mostFaster)
	}
	for i := best - 1; i > 0; i-- {
		x[i] = min(max(x[i], x[i+1]/mostFaster), x[i+1]*stepUp(i-1)/leastGain)
	}
	x[0] = min(max(x[0], x[1]/idleTwice), x[1]*idleTwice)
	sum := 0.0
	for i := range n {
		sum += x[i] * s.time[i]
	}
	for i := range n { // so that all of it is worth what it is
		s.speed[i] = x[i] * s.pieces / sum
	}
}

// stepUp is how many times as many the next step is.
func stepUp(i int) float64 { return float64(steps[i+1]) / float64(steps[i]) }

// knows tells whether anything is known of both steps: by so many pieces of work at the least.
func (s *speeds) knows(low, high int, least float64) bool {
	return s.weight > 0 && min(s.count[low+1], s.count[high+1]) >= least*s.weight
}

// done is how much gets done in a second with so many at once.
func (s *speeds) done(step int) float64 { return s.speed[step+1] * float64(steps[step]) }

// times is how many times as much gets done at a high step as at a low one, and the standard error of that: of the solution of equations that are off by so much.
func (s *speeds) times(low, high int) (is, err float64) {
	is = s.done(high) / s.done(low)
	n := s.most + 1
	var slope vector
	for i := range n {
		slope[i] = is * (s.inverse[high+1][i]/s.speed[high+1] - s.inverse[low+1][i]/s.speed[low+1])
	}
	for i := range n {
		for j := range n {
			err += slope[i] * slope[j] * s.v[i][j]
		}
	}
	return is, math.Sqrt(max(err*s.weight, 0))
}

// varies is the squared coefficient of variation of how much work is.
func (s *speeds) varies() float64 {
	if s.size <= 0 {
		return 0
	}
	return min(max(s.square*s.pieces/(s.size*s.size)-1, 0), mostDeviation)
}
