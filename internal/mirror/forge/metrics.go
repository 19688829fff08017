package forge

// Results of deliveries in metrics.
const (
	accepted = "accepted"
	replayed = "replayed"
	refused  = "refused"
	invalid  = "invalid"
	dropped  = "dropped"
)
