package servers

// HidePrograms makes this machine look as if packages had put no PostgreSQL on
// it, until cleanup runs what it is given.
func HidePrograms(cleanup func(func())) {
	old := homes
	homes = nil
	cleanup(func() { homes = old })
}
