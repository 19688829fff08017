package balance

const (
	mostPredicted = 16    // workers; more are as that many
	mostLoad      = 0.98  // of what can be done, from which on
	overload      = 200.0 // times what is more waits
	cannotMove    = 0.4   // pieces of work for each worker that others have while it is idle
)

// predict is how much there would be, running and waiting, if workers used the slots of a level, by what one gets done at each; and so how long work
// takes, for as much comes at any level.
//
// How many there are is a birth-death chain: work comes at random and is spread evenly, and n that run end as fast as so many get done. That is exact for one
// worker that shares its processor in equal turns, whatever work is like (Kelly 1979). What waits for a slot in order waits longer, or not as long, by how much
// work differs (Allen and Cunneen 1978). And what has begun at a worker stays there when another one becomes idle, which costs the more the less sharing gains.
func (u *tuner) predict(done *[len(steps)]float64, level, all int) float64 {
	workers, slots := min(max(all, 1), mostPredicted), steps[level]
	come := u.demand.rate() * float64(workers) / float64(max(all, 1))
	sum, shared, there := 1.0, 0.0, 0.0 // of probabilities: all; of no worker being idle; times how many there are
	p := 1.0
	for n := 1; n <= slots*workers; n++ {
		each, more := n/workers, n%workers
		p *= come / (float64(workers-more)*between(done, each) + float64(more)*between(done, each+1))
		if p > 1e100 {
			p, sum, shared, there = p*1e-100, sum*1e-100, shared*1e-100, there*1e-100
		}
		sum += p
		there += p * float64(n)
		if n >= workers {
			shared += p
		}
	}
	load, over := come/(float64(workers)*done[level]), 0.0
	if load > mostLoad {
		load, over = mostLoad, (load-mostLoad)*overload
	}
	wait := p * load / (1 - load) // that something does
	sum, shared, there = sum+wait, shared+wait, there+wait*float64(slots*workers)
	if level > 0 {
		lost := 1 - min(max(done[1]/done[0]-1, 0), 1)
		there += shared * lost * cannotMove * float64(workers*workers) / float64(workers+2)
	}
	return (there+wait/(1-load)*(1+u.speeds.varies())/2)/sum + over
}

// between is what gets done by n at once, from what does at steps.
func between(done *[len(steps)]float64, n int) float64 {
	if n == 0 {
		return 0
	}
	i := stepOf(n)
	if i == 0 || steps[i] == n {
		return done[i]
	}
	return done[i-1] + (done[i]-done[i-1])*float64(n-steps[i-1])/float64(steps[i]-steps[i-1])
}
