package origin

// SSHOptions are the keys and the known hosts of an SSH origin.
type SSHOptions struct{}
