"""Ways in for scripts that leave the loop to a framework. Only its module imports a framework."""
