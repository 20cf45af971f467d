"""The walkthrough as exercises: fill in functions of this project, graded by its own tests."""
